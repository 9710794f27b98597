/* A cluster that speaks TLS everywhere: its own authority, a certificate for the controller and one
 * for each worker, who dial by TCP; and programs that connect with an API key.
 * Errors: they end the test. Threads: one. */
#ifndef DT_TESTS_LIB_TLSCLUSTER_H
#define DT_TESTS_LIB_TLSCLUSTER_H
#include "lib/clienttest.h"
#include "lib/temptree.h"
#include "pki/pki.h"

typedef struct dt_tlscluster {
    dt_testcluster_t *tc;
    dt_temptree_t tree; /* ca.pem, server.pem and .key, w0.pem and .key, ... */
    dt_pki_pair_t ca;
    char address[64]; /* of the controller, TLS */
    char *key;        /* of a program */
    /* May be set between prepare and begin. */
    const char *ip;               /* of the controller, one of its certificate's; NULL: 127.0.0.1 */
    const char *controller_lines; /* more of its configuration, or NULL */
    void (*before)(void *arg, int who); /* a worker is started; NULL: nothing is to be done */
    void (*after)(void *arg, int who);
    void *arg;
} dt_tlscluster_t;

#define DT_TLSCLUSTER_IP "10.99.0.1" /* what the controller's certificate names beside loopback */

/* Start. `lines` are added to each worker's configuration. */
void dt_tlscluster_start(dt_tlscluster_t *c, int workers, const char *lines);
/* Likewise in steps: files are made, nothing runs; then the rest. */
void dt_tlscluster_prepare(dt_tlscluster_t *c, int workers);
void dt_tlscluster_begin(dt_tlscluster_t *c, int workers, const char *lines);
/* Stop; every daemon must have ended well. */
void dt_tlscluster_stop(dt_tlscluster_t *c);
/* Connect by TLS with the key. `way` is a word of DataPath=. */
dt_session_t *dt_tlscluster_connect(dt_tlscluster_t *c, const char *way, uint32_t vdev_count);

#endif
