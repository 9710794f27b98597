/* The files of the status page, as they lie in page/, within the program: no file is read at run
 * time. The assembler puts them in; mk/rules.mk makes this object again when one of them changes.
 */
#include "controllerd.h"

#define FOLDER "daemons/controllerd/page/"

/* clang-format off */
#define EMBED(name, file)                                                                          \
    __asm__(".section .rodata\n"                                                                   \
            ".globl dt_controllerd_page_" #name "\n.hidden dt_controllerd_page_" #name "\n"        \
            ".globl dt_controllerd_page_" #name "_end\n"                                           \
            ".hidden dt_controllerd_page_" #name "_end\n"                                          \
            "dt_controllerd_page_" #name ":\n.incbin \"" FOLDER file "\"\n"                        \
            "dt_controllerd_page_" #name "_end:\n.byte 0\n.previous\n");                           \
    extern const char dt_controllerd_page_##name[], dt_controllerd_page_##name##_end[]
/* clang-format on */

EMBED(html, "page.html");
EMBED(css, "page.css");
EMBED(js, "page.js");
EMBED(icon, "icon.svg");

#define FILE_OF(path, type, name)                                                                  \
    {                                                                                              \
        path, type, dt_controllerd_page_##name, 0                                                  \
    }

const dt_page_file_t *dt_controllerd_page_files(size_t *ret_count)
{
    static dt_page_file_t files[] = {
        FILE_OF("/", "text/html; charset=utf-8", html),
        FILE_OF("/page.css", "text/css; charset=utf-8", css),
        FILE_OF("/page.js", "text/javascript; charset=utf-8", js),
        FILE_OF("/icon.svg", "image/svg+xml", icon),
    };
    const char *const ends[] = {dt_controllerd_page_html_end, dt_controllerd_page_css_end,
                                dt_controllerd_page_js_end, dt_controllerd_page_icon_end};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        files[i].size = (size_t)(ends[i] - (const char *)files[i].bytes);
    *ret_count = sizeof files / sizeof *files;
    return files;
}
