#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

TestSuite(json, .timeout = 10);

static const char *text_of(const char *text)
{
    static char kept[512];
    const char *said;
    dt_buf_t buf;
    dt_json_t json;
    dt_buf_init(&buf, 400);
    dt_json_init(&json, &buf);
    dt_json_text(&json, text);
    cr_assert_eq(json.status, DT_OK);
    cr_assert_eq(dt_buf_text(&buf, &said), DT_OK);
    (void)snprintf(kept, sizeof kept, "%s", said);
    dt_buf_fini(&buf);
    return kept;
}

Test(json, puts_commas_where_they_belong)
{
    const char *said;
    dt_buf_t buf;
    dt_json_t json;
    dt_buf_init(&buf, 400);
    dt_json_init(&json, &buf);
    dt_json_open(&json, '{');
    dt_json_put_text(&json, "a", "b");
    dt_json_key(&json, "list");
    dt_json_open(&json, '[');
    dt_json_uint(&json, 18446744073709551615u);
    dt_json_int(&json, -5);
    dt_json_int(&json, INT64_MIN);
    dt_json_uint(&json, 0);
    dt_json_open(&json, '[');
    dt_json_close(&json, ']');
    dt_json_bool(&json, true);
    dt_json_close(&json, ']');
    dt_json_put_uint(&json, "c", 1);
    dt_json_put_int(&json, "d", -1);
    dt_json_close(&json, '}');
    cr_assert_eq(dt_buf_text(&buf, &said), DT_OK);
    cr_assert_str_eq(
        said,
        "{\"a\":\"b\",\"list\":[18446744073709551615,-5,-9223372036854775808,0,[],true],\"c\":1,"
        "\"d\":-1}");
    dt_buf_fini(&buf);
}

Test(json, escapes_what_would_end_a_text_a_script_or_a_line)
{
    cr_assert_str_eq(text_of("plain \xc3\xa9\xf0\x9f\x8c\x8d"),
                     "\"plain \xc3\xa9\xf0\x9f\x8c\x8d\"");
    cr_assert_str_eq(text_of("</script>&\"\\\n\x7f"),
                     "\"\\u003c/script\\u003e\\u0026\\u0022\\u005c\\u000a\\u007f\"");
    cr_assert_str_eq(text_of("a\xe2\x80\xa8"
                             "b\xe2\x80\xa9"),
                     "\"a\\u2028b\\u2029\"");
    cr_assert_str_eq(text_of(""), "\"\"");
}

Test(json, bytes_that_are_no_text_become_marks)
{
    cr_assert_str_eq(text_of("a\xff"
                             "b\xc3"),
                     "\"a\\ufffdb\\ufffd\"");
}

Test(json, keeps_the_first_failure)
{
    dt_buf_t buf;
    dt_json_t json;
    dt_buf_init(&buf, 8);
    dt_json_init(&json, &buf);
    dt_json_text(&json, "far too long");
    cr_assert_eq(json.status, DT_ERR_LIMIT);
    dt_json_uint(&json, 1);
    cr_assert_eq(json.status, DT_ERR_LIMIT);
    cr_assert_leq(buf.len, 8);
    dt_buf_fini(&buf);
}
