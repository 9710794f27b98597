#include <criterion/criterion.h>

#include "base/look.h"

TestSuite(look, .timeout = 30);

Test(look, goes_on_as_long_as_it_pays_more_than_four_times_of_five)
{
    dt_look_t look = {0};
    for (int i = 0; i < 1000; i++) {
        cr_assert(dt_look_begin(&look));
        dt_look_end(&look, i % 5 != 4);
    }
}

Test(look, rests_after_one_in_vain_at_the_start_and_is_tried_anew)
{
    dt_look_t look = {0};
    int looked = 0;
    cr_assert(dt_look_begin(&look));
    dt_look_end(&look, false);
    for (int i = 0; i < DT_LOOK_REST; i++)
        cr_assert_not(dt_look_begin(&look));
    for (; dt_look_begin(&look); looked++)
        dt_look_end(&look, false);
    cr_assert_eq(looked, DT_LOOK_ANEW / DT_LOOK_MISS + 1);
}

Test(look, that_never_pays_is_seldom)
{
    dt_look_t look = {0};
    int looked = 0;
    for (int i = 0; i < 10000; i++)
        if (dt_look_begin(&look)) {
            looked++;
            dt_look_end(&look, false);
        }
    cr_assert_leq(looked, 10000 / 50);
}

Test(look, has_a_bounded_store)
{
    dt_look_t look = {0};
    for (int i = 0; i < 100000; i++)
        dt_look_end(&look, true);
    cr_assert_eq(look.store, DT_LOOK_MOST);
}
