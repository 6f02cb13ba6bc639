/* Numbers for the libraries below, from the text file that $AGENTX_TEST_SMI names: one `key=value` a line, read anew at
 * every call, so that a test can change them while the library is loaded. A value `!N` is the library's error code N;
 * a key that is missing is what the library calls "not supported". `@W` is an energy that grows by W watts since
 * the machine's start, in microjoules. */
#ifndef SCRIPT_H
#define SCRIPT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SCRIPT_TEXT 256

static int script_text(const char *key, char *out, int missing)
{
    const char *path = getenv("AGENTX_TEST_SMI");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[2 * SCRIPT_TEXT];
    size_t length = strlen(key);
    int code = missing;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, key, length) || line[length] != '=')
            continue;
        snprintf(out, SCRIPT_TEXT, "%s", line + length + 1);
        code = out[0] == '!' ? atoi(out + 1) : 0;
    }
    if (file)
        fclose(file);
    return code;
}

static int script_number(const char *key, double *out, int missing)
{
    char text[SCRIPT_TEXT];
    int code = script_text(key, text, missing);
    if (code)
        return code;
    if (text[0] == '@') {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        *out = atof(text + 1) * (now.tv_sec * 1e6 + now.tv_nsec * 1e-3);
    } else {
        *out = atof(text);
    }
    return 0;
}

#endif
