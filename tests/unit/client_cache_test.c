/* From a call to its signature, without a cluster. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "client/src/client.h"

TestSuite(client_cache, .timeout = 60);

static dt_session_t *session;
static dt_tensor_t *a, *b, *wide;

static dt_tensor_t *tensor(uint64_t id, int64_t size)
{
    dt_meta_t meta;
    uint32_t index;
    cr_assert_eq(dt_meta_set(&meta, DT_DTYPE_F32, 1, &size, NULL, 0, NULL), DT_OK);
    cr_assert_eq(dt_client_meta_intern(&session->metas, &meta, &index), DT_OK);
    return dt_client_tensor_new(session, id, index, 0);
}

static void open_session(void)
{
    session = dt_client_create(NULL);
    session->settings.vdev_count = 1;
    session->has_mesh = calloc(1, 1);
    a = tensor(1, 4);
    b = tensor(2, 4);
    wide = tensor(3, 9);
}

static void close_session(void)
{
    pthread_mutex_lock(&session->lock);
    session->state = DT_CLIENT_ENDED;
    dt_client_tensor_unref(a);
    dt_client_tensor_unref(b);
    dt_client_tensor_unref(wide);
    dt_client_unuse_unlock(session);
}

static dt_client_signature_t *lookup(const char *name, const dt_value_t *args, uint32_t count,
                                     dt_client_family_t **ret_family)
{
    cr_assert_eq(dt_client_call_handles(session, name, args, count, NULL), DT_OK);
    return dt_client_lookup(session, ret_family);
}

/* Enter what the cluster would have answered: one fresh output like `like`. */
static dt_client_signature_t *enter(dt_client_family_t *family, const dt_client_numbers_t *numbers,
                                    const dt_tensor_t *like)
{
    dt_client_signature_t *sig = calloc(1, sizeof *sig);
    sig->outputs = calloc(1, sizeof *sig->outputs);
    sig->metas = calloc(1, sizeof *sig->metas);
    sig->output_count = sig->id_count = 1;
    sig->metas[0] = like->meta;
    cr_assert_eq(dt_client_cache_put(&session->cache, family, numbers, sig), DT_OK);
    return sig;
}

Test(client_cache, finds_what_was_entered_and_nothing_else)
{
    dt_client_family_t *family;
    dt_client_numbers_t numbers = {0};
    open_session();
    const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_tensor(b)};
    const dt_value_t other[] = {dt_arg_tensor(a), dt_arg_tensor(wide)};
    const dt_value_t ids[] = {dt_arg_tensor(b), dt_arg_tensor(a)};
    cr_assert_null(lookup("aten::add.Tensor", args, 2, &family));
    cr_assert_null(family);
    family = dt_client_family_new(session);
    dt_client_signature_t *sig = enter(family, &numbers, a);
    cr_assert_eq(lookup("aten::add.Tensor", args, 2, &family), sig);
    cr_assert_eq(lookup("aten::add.Tensor", ids, 2, &family), sig, "ids do not count");
    cr_assert_null(lookup("aten::add.Tensor", other, 2, &family), "sizes do");
    cr_assert_null(lookup("aten::sub.Tensor", args, 2, &family), "names do");
    cr_assert_null(lookup("aten::add.Tensor", args, 1, &family), "counts do");
    close_session();
}

Test(client_cache, a_float_that_changed_twice_becomes_dynamic)
{
    dt_client_family_t *family;
    dt_client_numbers_t numbers;
    open_session();
    for (int i = 0; i < 5; i++) {
        const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_double(i)};
        dt_client_signature_t *found = lookup("aten::mul.Scalar", args, 2, &family);
        if (!family)
            family = dt_client_family_new(session);
        cr_assert_eq(found != NULL, i > 2, "value %d", i);
        if (found)
            continue;
        const dt_client_signature_t *like = dt_client_promote(session, family, &numbers);
        cr_assert_eq(numbers.mask, i == 2 ? 1 : 0);
        cr_assert_eq(like != NULL, i == 2, "the outputs are known from the others");
        enter(family, &numbers, a);
    }
    close_session();
}

Test(client_cache, a_number_that_changes_the_outputs_stays_an_attribute)
{
    dt_client_family_t *family;
    dt_client_numbers_t numbers;
    open_session();
    for (int i = 0; i < 6; i++) {
        const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_double(i)};
        cr_assert_null(lookup("aten::stretch", args, 2, &family));
        if (!family)
            family = dt_client_family_new(session);
        cr_assert_null(dt_client_promote(session, family, &numbers));
        cr_assert_eq(numbers.mask, 0);
        enter(family, &numbers, i % 2 ? a : wide);
    }
    close_session();
}

Test(client_cache, integers_become_dynamic_only_where_the_schema_has_a_scalar)
{
    static const char *const names[] = {"aten::add.Scalar", "aten::transpose.int"};
    open_session();
    for (int n = 0; n < 2; n++) {
        const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_int(3)};
        const dt_value_t first[] = {dt_arg_int(3), dt_arg_tensor(a)};
        cr_assert_eq(dt_client_call_handles(session, names[n], args, 2, NULL), DT_OK);
        cr_assert_eq(session->cache.call.number_count, n == 0 ? 1 : 0);
        cr_assert_eq(dt_client_call_handles(session, names[n], first, 2, NULL), DT_OK);
        cr_assert_eq(session->cache.call.number_count, 0, "none in front of a tensor");
    }
    close_session();
}

Test(client_cache, a_second_number_is_not_taken_for_proved)
{
    dt_client_family_t *family;
    dt_client_numbers_t numbers;
    open_session();
    for (int i = 0; i < 3; i++) { /* the first number changes, the second does not */
        const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_double(i), dt_arg_double(7)};
        (void)lookup("aten::blend", args, 3, &family);
        if (!family)
            family = dt_client_family_new(session);
        (void)dt_client_promote(session, family, &numbers);
        enter(family, &numbers, a);
    }
    cr_assert_eq(numbers.mask, 1);
    const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_double(9), dt_arg_double(8)};
    cr_assert_null(lookup("aten::blend", args, 3, &family));
    cr_assert_null(dt_client_promote(session, family, &numbers), "8 has to be asked for");
    close_session();
}

Test(client_cache, lists_and_texts_are_part_of_the_call)
{
    dt_client_family_t *family;
    dt_client_numbers_t none = {0};
    static const int64_t ints[] = {1, 2, 3};
    static const double doubles[] = {1, 2};
    open_session();
    dt_tensor_t *const list[] = {a, NULL, b};
    const dt_value_t scalars[] = {dt_arg_int(1), dt_arg_double(2), dt_arg_bool(true)};
    dt_value_t values = dt_arg_tag(DT_VALUE_VALUES);
    values.values = scalars;
    values.count = 3;
    dt_value_t args[] = {dt_arg_tensors(list, 3),
                         dt_arg_ints(ints, 3),
                         dt_arg_doubles(doubles, 2),
                         dt_arg_str("reflect", 7),
                         values,
                         dt_arg_dtype(DT_DTYPE_F64),
                         dt_arg_number(DT_VALUE_DEVICE, 0)};
    cr_assert_null(lookup("aten::all", args, 7, &family));
    cr_assert_eq(session->cache.call.input_count, 2);
    dt_client_signature_t *sig = enter(dt_client_family_new(session), &none, a);
    cr_assert_eq(lookup("aten::all", args, 7, &family), sig);
    args[3] = dt_arg_str("reflecT", 7);
    cr_assert_null(lookup("aten::all", args, 7, &family));
    args[3] = dt_arg_str("reflect", 7);
    args[1] = dt_arg_ints(ints, 2);
    cr_assert_null(lookup("aten::all", args, 7, &family));
    close_session();
}

Test(client_cache, refuses_what_cannot_be_passed)
{
    dt_error_t err;
    open_session();
    dt_session_t *other = dt_client_create(NULL);
    dt_session_t *mine = session;
    session = other;
    dt_tensor_t *stranger = tensor(1, 4);
    session = mine;
    dt_tensor_t *elsewhere = dt_client_tensor_new(session, 9, a->meta, 1);
    const dt_value_t foreign[] = {dt_arg_tensor(stranger)};
    const dt_value_t apart[] = {dt_arg_tensor(a), dt_arg_tensor(elsewhere)};
    const dt_value_t dynamic[] = {dt_arg_tag(DT_VALUE_DYNAMIC)};
    const dt_value_t odd[] = {dt_arg_tag((dt_value_tag_t)99)};
    const dt_value_t endless[] = {dt_arg_ints(NULL, 70000)};
    cr_assert_eq(dt_client_call_handles(session, "aten::t", foreign, 1, &err), DT_ERR_INVALID);
    cr_assert_not_null(strstr(err.text, "another session"));
    cr_assert_eq(dt_client_call_handles(session, "aten::add.Tensor", apart, 2, &err),
                 DT_ERR_INVALID);
    cr_assert_not_null(strstr(err.text, "different virtual devices"));
    cr_assert_eq(dt_client_call_handles(session, "aten::t", dynamic, 1, &err), DT_ERR_INVALID);
    cr_assert_eq(dt_client_call_handles(session, "aten::t", odd, 1, &err), DT_ERR_INVALID);
    cr_assert_eq(dt_client_call_handles(session, "aten::t", endless, 1, &err), DT_ERR_INVALID);
    cr_assert_eq(dt_client_call_handles(session, "", apart, 1, &err), DT_ERR_INVALID);
    dt_client_tensor_unref(elsewhere);
    pthread_mutex_lock(&other->lock);
    other->state = DT_CLIENT_ENDED;
    dt_client_tensor_unref(stranger);
    dt_client_unuse_unlock(other);
    close_session();
}
