/* How a call is put together: shared by the boxed kernel (record.cpp), which takes any operator,
 * and the typed ones (typed.cpp) of the operators that programs call most. Both make the same keys,
 * so that an operator has one signature whichever way it comes.
 *
 * All of it is called with the recorder held. */
#ifndef DT_PYTHON_RECORD_H
#define DT_PYTHON_RECORD_H
#include "internal.h"

namespace dt_pu
{

/* What one call is made of; a thread's own, kept for its memory. */
struct Scratch {
    Key key;
    std::vector<uint64_t> ids;
    std::vector<const Geometry *> operands;
    std::vector<dt_value_t> scalars;
    std::vector<uint64_t> temporaries; /* uploads for this call alone */
    std::vector<uint64_t> outputs;
    std::vector<at::Tensor> copies; /* where tensors are in use, for this call alone */
    int64_t vdev;                   /* -1: not known yet */
    uint32_t mesh;                  /* of an operand; 0: none is on one */
    bool has_mask;
    uint32_t stream;         /* of random numbers, if the operator draws */
    void free_temporaries(); /* after a call, or when the one before did not come that far */
    /* `is_odd` is is_default_type_odd() */
    void begin(const Op &op, bool is_odd);
    void end() /* the key is whole */
    {
        key.put(where());
    }
    uint32_t where() const
    {
        return (uint32_t)(vdev < 0 ? 0 : vdev);
    }
};

/* This thread's. */
Scratch &scratch();

void put_number(Scratch &s, const Op &op, const Argument &argument, const c10::IValue &v);
/* As above, for what comes most: a whole number that a pointwise operator computes with. */
inline void put_number(Scratch &s, const Op &op, const Argument &argument, const at::Scalar &number)
{
    if (C10_UNLIKELY(!op.is_pointwise || argument.kind != Kind::scalar || op.shapes_by_value ||
                     number.type() != c10::kLong || number.isSymbolic())) {
        put_number(s, op, argument, c10::IValue(number));
        return;
    }
    s.key.put((uint64_t)'i' << 32 | 1);
    s.scalars.push_back(dt_arg_int(number.toLong()));
}
void put_tensor(Scratch &s, const Op &op, const Argument &argument, const at::Tensor &tensor);
void put_generator(Scratch &s, const at::Generator &generator);
void put_value(Scratch &s, const Op &op, const Argument &argument, const c10::IValue &v);
/* The operator in `s` draws on one device of several, whose streams part then (random.cpp). */
void note_draw(const Scratch &s, const Op &op);
/* Append the record; the outputs' ids are in s.outputs then. */
void submit(Scratch &s, const Signature &signature);

/* ---- views: the key of a call is the geometry of its tensor and of what that is a view of, then
 * its other arguments (views.cpp) ---- */

using Geometries = std::vector<const Geometry *>;

void begin_view(Scratch &s, const Op &op, const at::Tensor &viewed);
/* What comes out, if the same was called before; else NULL. */
const Geometries *find_view(const Key &key);
at::Tensor view_of(const at::Tensor &viewed, const Geometry *geometry);
/* This call comes out of another view operator: nothing is noted. Any thread, without the lock. */
bool is_within_view();

} // namespace dt_pu
#endif
