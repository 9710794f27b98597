/* dtorchctl: what operators type. The grammar is in verbs.c, each noun in its cmd_ file. */
#include <locale.h>
#include <string.h>

#include "base/stdfds.h"
#include "ctl.h"

int main(int argc, char **argv)
{
    dt_ctl_t ctl;
    dt_stdfds_open();
    /* Widths of characters are those of UTF-8 in any locale; where there is no such locale, every
     * character counts as one column. */
    (void)setlocale(LC_CTYPE, "C.UTF-8");
    if (argc >= 2 && strcmp(argv[1], "__complete") == 0)
        return dt_ctl_complete(argc - 2, argv + 2, stdout);
    if (argc == 3 && strcmp(argv[1], "--man") == 0)
        return dt_ctl_man(argv[2], stdout, stderr);
    int code = dt_ctl_init(&ctl, argc, argv, stdout, stderr);
    if (code == DT_CTL_EXIT_OK)
        code = dt_ctl_run(&ctl);
    dt_ctl_fini(&ctl);
    return code;
}
