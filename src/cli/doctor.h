/* doctor.h: what `edgeagent doctor` finds, and what it makes of it. */
#ifndef EA_CLI_DOCTOR_H
#define EA_CLI_DOCTOR_H

#include "base/machine.h"
#include "cli/cli.h"

/* Measured limits: with one thread, and with n_threads. */
typedef struct ea_doctor_limits {
    bool measured;
    int n_threads;
    double read[2];         /* bytes a second */
    double int8[2], f32[2]; /* multiply-adds a second */
} ea_doctor_limits;

enum { EA_ADVICE_LINES = 24, EA_ADVICE_BYTES = 320 };

typedef struct ea_advice {
    int n;
    char lines[EA_ADVICE_LINES][EA_ADVICE_BYTES];
} ea_advice;

/* What keeps this process from being as fast as the machine, one line each with what to do; none
 * where nothing is wrong. A pure function. */
void ea_doctor_advise(const ea_machine *m, const ea_doctor_limits *limits, ea_advice *out);

#endif
