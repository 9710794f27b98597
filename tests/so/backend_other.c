/* A library that is no backend: it exports another symbol. */
__attribute__((visibility("default"))) int dt_other_get(void);
int dt_other_get(void)
{
    return 1;
}
