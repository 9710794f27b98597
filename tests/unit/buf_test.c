#include <criterion/criterion.h>
#include <string.h>

#include "base/buf.h"
#include "base/strings.h"

TestSuite(buf, .timeout = 60);

Test(buf, holds_what_was_appended_in_order)
{
    dt_buf_t buf;
    const char *text;
    dt_buf_init(&buf, 1000);
    cr_assert_eq(dt_buf_append_str(&buf, "ab"), DT_OK);
    cr_assert_eq(dt_buf_append_byte(&buf, 'c'), DT_OK);
    cr_assert_eq(dt_buf_printf(&buf, "%d-%s", 7, "x"), DT_OK);
    cr_assert_eq(dt_buf_text(&buf, &text), DT_OK);
    cr_assert_str_eq(text, "abc7-x");
    cr_assert_eq(buf.len, 6);
    dt_buf_fini(&buf);
}

Test(buf, grows_to_its_maximum_and_not_a_byte_further)
{
    dt_buf_t buf;
    dt_buf_init(&buf, 1000);
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(dt_buf_append_byte(&buf, (uint8_t)i), DT_OK);
    cr_assert_eq(dt_buf_append_byte(&buf, 0), DT_ERR_LIMIT);
    cr_assert_eq(buf.len, 1000);
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(buf.data[i], (uint8_t)i);
    dt_buf_fini(&buf);
}

Test(buf, a_failed_append_leaves_it_as_it_was)
{
    dt_buf_t buf;
    dt_buf_init(&buf, 4);
    cr_assert_eq(dt_buf_append_str(&buf, "abc"), DT_OK);
    cr_assert_eq(dt_buf_append_str(&buf, "de"), DT_ERR_LIMIT);
    cr_assert_eq(dt_buf_printf(&buf, "%s", "de"), DT_ERR_LIMIT);
    cr_assert_eq(dt_buf_reserve(&buf, SIZE_MAX), DT_ERR_LIMIT);
    cr_assert_eq(buf.len, 3);
    cr_assert_eq(memcmp(buf.data, "abc", 3), 0);
    dt_buf_fini(&buf);
}

Test(buf, formatted_text_may_fill_it_to_the_last_byte)
{
    dt_buf_t buf;
    const char *text;
    dt_buf_init(&buf, 5);
    cr_assert_eq(dt_buf_printf(&buf, "%s", "12345"), DT_OK);
    cr_assert_eq(buf.len, 5);
    cr_assert_eq(memcmp(buf.data, "12345", 5), 0);
    cr_assert_eq(dt_buf_text(&buf, &text), DT_ERR_LIMIT, "no room for the NUL");
    dt_buf_fini(&buf);
}

Test(buf, consuming_moves_the_rest_to_the_front)
{
    dt_buf_t buf;
    dt_buf_init(&buf, 100);
    cr_assert_eq(dt_buf_append_str(&buf, "hello world"), DT_OK);
    buf.pos = 6;
    dt_buf_consume(&buf, 6);
    cr_assert_eq(buf.len, 5);
    cr_assert_eq(buf.pos, 0);
    cr_assert_eq(memcmp(buf.data, "world", 5), 0);
    dt_buf_consume(&buf, 5);
    cr_assert_eq(buf.len, 0);
    dt_buf_fini(&buf);
}

Test(buf, taking_the_text_leaves_an_empty_buffer)
{
    dt_buf_t buf;
    DT_CLEANUP(dt_str_free) char *text = NULL;
    dt_buf_init(&buf, 100);
    cr_assert_eq(dt_buf_append_str(&buf, "x"), DT_OK);
    cr_assert_eq(dt_buf_take_text(&buf, &text), DT_OK);
    cr_assert_str_eq(text, "x");
    cr_assert(buf.data == NULL && buf.len == 0 && buf.max == 100);
}

Test(buf, a_zeroed_one_takes_nothing)
{
    dt_buf_t buf = {0};
    cr_assert_eq(dt_buf_append_byte(&buf, 1), DT_ERR_LIMIT);
    cr_assert_eq(dt_buf_append(&buf, NULL, 0), DT_OK);
    dt_buf_fini(&buf);
    dt_buf_fini(NULL);
}
