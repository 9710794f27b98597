/* Rows of a dimension that is cut, by a number that each call brings.
 *
 * A walk through a tensor, x[i] or x[i : i + n], is one signature whose first row is a number of
 * the call. Which devices hold such rows nobody knows from it, so lib/shard would move the tensor.
 * Here the number becomes part of the signature where the dimension is cut: each number has a
 * signature of its own, a slice, whose rows stay where they are. And select, which leaves no
 * dimension to be cut, is a slice of one row, and then the select of it, which moves that row
 * alone. */
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define ARENA_MAX    (1u << 20)
#define VARIANTS_MAX 256u /* of one signature; a longer walk moves the tensor once */

struct dt_client_rows {
    struct dt_client_rows *next;
    int64_t first;
    dt_client_signature_t *take;   /* a slice */
    dt_client_signature_t *select; /* of its row; NULL: of narrow */
};

void dt_client_rows_free(dt_client_signature_t *signature)
{
    while (signature->rows) {
        struct dt_client_rows *rows = signature->rows;
        signature->rows = rows->next;
        free(rows);
    }
}

static bool is_select(const dt_signature_t *sig)
{
    return strcmp(sig->name, "aten::select.int") == 0;
}

int dt_client_rows_dim(const dt_signature_t *sig)
{
    if (sig->arg_count < 3 || sig->input_count != 1 || sig->output_count != 1 ||
        sig->outputs[0].alias != DT_ALIAS_VIEW || sig->args[1].tag != DT_VALUE_INT)
        return -1;
    unsigned tag = sig->args[2].tag;
    bool is_walk = is_select(sig) ? tag == DT_VALUE_DYNAMIC || tag == DT_VALUE_INT
                                  : strcmp(sig->name, "aten::narrow") == 0 &&
                                        tag == DT_VALUE_DYNAMIC && sig->arg_count == 4;
    int64_t dim = sig->args[1].number, ndim = sig->inputs[0].meta.ndim;
    dim = dim < 0 ? dim + ndim : dim;
    return is_walk && dim >= 0 && dim < ndim ? (int)dim : -1;
}

/* ---- the signatures of one number ---- */

static dt_status_t define_take(dt_session_t *session, const dt_signature_t *sig, int64_t size,
                               struct dt_client_rows *rows, dt_meta_t *ret_meta, dt_error_t *err)
{
    const dt_meta_t *from = &sig->inputs[0].meta;
    int64_t sizes[DT_META_DIM_MAX];
    int64_t dim = sig->args[1].number < 0 ? sig->args[1].number + from->ndim : sig->args[1].number;
    const dt_value_t args[] = {{.tag = DT_VALUE_TENSOR},
                               {.tag = DT_VALUE_INT, .number = dim},
                               {.tag = DT_VALUE_INT, .number = rows->first},
                               {.tag = DT_VALUE_INT, .number = rows->first + size},
                               {.tag = DT_VALUE_INT, .number = 1}};
    memcpy(sizes, from->sizes, sizeof sizes);
    sizes[dim] = size;
    DT_TRY(dt_meta_set(ret_meta, from->dtype, from->ndim, sizes, from->strides,
                       from->layout & (DT_META_CONJ | DT_META_NEG), err));
    dt_signature_tensor_t output = sig->outputs[0];
    output.meta = *ret_meta;
    dt_signature_t take = {.name = "aten::slice.Tensor",
                           .arg_count = 5,
                           .args = args,
                           .input_count = 1,
                           .inputs = sig->inputs,
                           .output_count = 1,
                           .outputs = &output};
    return dt_client_signature_define(session, &take, &rows->take, err);
}

static dt_status_t define_select(dt_session_t *session, const dt_signature_t *sig,
                                 const dt_meta_t *row, struct dt_client_rows *rows, dt_error_t *err)
{
    const dt_value_t args[] = {
        {.tag = DT_VALUE_TENSOR}, sig->args[1], {.tag = DT_VALUE_INT, .number = 0}};
    dt_signature_tensor_t input = sig->inputs[0], output = sig->outputs[0];
    input.meta = *row;
    dt_signature_t select = {.name = sig->name,
                             .arg_count = 3,
                             .args = args,
                             .input_count = 1,
                             .inputs = &input,
                             .output_count = 1,
                             .outputs = &output};
    return dt_client_signature_define(session, &select, &rows->select, err);
}

static dt_status_t define(dt_session_t *session, const dt_client_signature_t *signature,
                          struct dt_client_rows *rows, dt_error_t *err)
{
    dt_cursor_t cursor = {.at = signature->body, .end = signature->body + signature->body_bytes};
    dt_signature_t *sig;
    dt_arena_t arena;
    dt_meta_t row;
    dt_arena_init(&arena, ARENA_MAX);
    dt_status_t status = dt_signature_decode(&cursor, &arena, &sig) == 0
                             ? DT_OK
                             : dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a signature");
    bool drops = status == DT_OK && is_select(sig);
    if (status == DT_OK)
        status = define_take(session, sig, drops ? 1 : sig->args[3].number, rows, &row, err);
    if (status == DT_OK)
        rows->take->vdev = signature->vdev;
    if (status == DT_OK && drops)
        status = define_select(session, sig, &row, rows, err);
    if (status == DT_OK && drops)
        rows->select->vdev = signature->vdev;
    dt_arena_fini(&arena);
    return status;
}

/* NULL: there are too many, or (with a status) it failed. The lock may be released. */
static dt_status_t variant(dt_session_t *session, dt_client_signature_t *signature, int64_t first,
                           const struct dt_client_rows **ret_rows, dt_error_t *err)
{
    struct dt_client_rows *rows = signature->rows;
    *ret_rows = NULL;
    for (; rows && rows->first != first; rows = rows->next)
        ;
    if (rows && !rows->take->is_dropped && !(rows->select && rows->select->is_dropped)) {
        rows->take->used = dt_client_sequence(session);
        if (rows->select)
            rows->select->used = rows->take->used;
        *ret_rows = rows;
        return DT_OK;
    }
    if (!rows && signature->row_count == VARIANTS_MAX)
        return DT_OK;
    struct dt_client_rows made = {.first = first};
    DT_TRY(define(session, signature, &made, err));
    if (!rows) {
        rows = calloc(1, sizeof *rows);
        if (!rows)
            return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a signature");
        made.next = signature->rows;
        signature->rows = rows;
        signature->row_count++;
    } else {
        made.next = rows->next;
    }
    *rows = made;
    *ret_rows = rows;
    return DT_OK;
}

/* ---- one call ---- */

/* Is dimension `dim` of an input cut, and by one dimension of its mesh alone? */
static bool is_cut(const dt_session_t *session, const dt_client_node_t *node, int dim)
{
    dt_layout_t layout;
    uint32_t cuts = 0;
    if (!dt_client_place_mesh(session, node->place))
        return false;
    dt_client_place_layout(session, node->place, &layout);
    for (unsigned j = 0; j < layout.ndim; j++) {
        dt_placement_t p = layout.placements[j];
        if (p.kind != DT_PLACEMENT_SHARD || p.dim != dim)
            continue;
        if (!dt_placement_is_window(p) && (p.unit != 1 || p.groups != 1 || p.order))
            return false;
        cuts++;
    }
    return cuts == 1;
}

static dt_status_t select_row(dt_session_t *session, const dt_client_spread_t *spread,
                              const struct dt_client_rows *rows, uint64_t row,
                              uint64_t *ret_outputs, dt_error_t *err)
{
    const dt_client_spread_t last = {
        .signature = rows->select, .inputs = &row, .wanted = spread->wanted};
    dt_status_t status = dt_client_spread(session, &last, ret_outputs, err);
    dt_client_node_unref(session, dt_client_node_find(session, row)); /* the view holds it now */
    dt_client_drop_flush(session);
    return status;
}

dt_status_t dt_client_rows(dt_session_t *session, const dt_client_spread_t *spread,
                           uint64_t *ret_outputs, bool *ret_is_done, dt_error_t *err)
{
    dt_client_signature_t *signature = spread->signature;
    const dt_client_node_t *node = dt_client_node_find(session, spread->inputs[0]);
    const struct dt_client_rows *rows;
    int64_t first = signature->row_first;
    uint64_t row = 0;
    *ret_is_done = false;
    if (!node || !is_cut(session, node, signature->row_dim))
        return DT_OK;
    const dt_meta_t *from = session->metas.items[signature->inputs[0]];
    if ((session->track.policy & DT_POLICY_STRICT) && signature->outputs[0].meta.ndim < from->ndim)
        return DT_OK; /* what is selected has to move */
    if (spread->scalar_count == 1 && spread->scalars[0].tag == DT_VALUE_INT)
        first = spread->scalars[0].number;
    else if (spread->scalar_count)
        return DT_OK;
    int64_t size = from->sizes[signature->row_dim];
    first = first < 0 ? first + size : first;
    if (first < 0 || first > size || size == 1)
        return DT_OK; /* the operator says what is wrong; one row is moved */
    DT_TRY(variant(session, signature, first, &rows, err));
    if (!rows)
        return DT_OK;
    const struct dt_client_rows is = *rows; /* the list may change while the lock is released */
    const dt_client_spread_t begin = {
        .signature = is.take, .inputs = spread->inputs, .wanted = spread->wanted};
    DT_TRY(dt_client_spread(session, &begin, is.select ? &row : ret_outputs, err));
    *ret_is_done = true;
    return is.select ? select_row(session, spread, &is, row, ret_outputs, err) : DT_OK;
}
