/* Feeds files to a fuzz target that was built without libFuzzer, so that every build replays the
 * committed corpus. usage: X_fuzz FILE... */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    long size;
    int rc = 1;
    if (!file) {
        perror(path);
        return 1;
    }
    if (fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0 &&
        fseek(file, 0, SEEK_SET) == 0) {
        /* Exactly as large as the input, so that the address sanitizer sees a read past it. */
        data = malloc(size > 0 ? (size_t)size : 1);
        if (data && fread(data, 1, (size_t)size, file) == (size_t)size)
            rc = LLVMFuzzerTestOneInput(data, (size_t)size) == 0 ? 0 : 1;
    }
    free(data);
    (void)fclose(file);
    if (rc)
        (void)fprintf(stderr, "%s: could not be replayed\n", path);
    return rc;
}

int main(int argc, char **argv)
{
    int failed = 0;
    for (int i = 1; i < argc; i++)
        failed |= replay(argv[i]);
    return failed;
}
