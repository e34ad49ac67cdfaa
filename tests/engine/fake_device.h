/* fake_device.h: a device for tests of the engine, with a clock of its own.
 *
 * Its "KV" of a position is (position, token, chain), chain being a hash of all tokens up to there.
 * A step reads back the whole chain of every sequence through its page table and aborts at the
 * first position that is not what the positions before it say, so any page that was mixed up,
 * overwritten, not copied or freed too early is caught at the step that would have read it. It
 * aborts too when a page is written by two sequences, or written while another sequence of the step
 * has it in its table. The next token is a hash of the chain: the text of a timeline is known
 * without the engine (fake_expect). */
#ifndef EA_TESTS_ENGINE_FAKE_DEVICE_H
#define EA_TESTS_ENGINE_FAKE_DEVICE_H

#include <stdatomic.h>

#include "device/device.h"

enum { FAKE_EOG = 0 }; /* token that ends a generation */

/* What the device shares with the test; outlives it. Parameters are set before the engine starts.
 */
typedef struct fake_world {
    int n_vocab, page_tokens, n_pages, max_rows, max_logit_rows;
    int check_every; /* chains are read back at every such step; 1 but for tests of time */
    int eog_every;   /* one token in this many is FAKE_EOG; 0 = none */
    /* Cost of a step on the fake clock. */
    uint64_t base_ns, row_ns, attn_ns, out_ns;
    uint64_t real_ns; /* time to sleep in a step, for tests of threads */

    atomic_ullong now_ns;
    atomic_ullong n_steps, n_rows, n_out_rows, n_copies;
    atomic_int max_rows_of_step;
    atomic_llong fail_step; /* this step fails (counted from 1); 0 = none */
    atomic_int n_seqs_last; /* sequences in the last step */
} fake_world;

fake_world fake_world_default(void);
ea_device *fake_device_create(fake_world *world);

/* The n tokens that follow prompt under greedy sampling, FAKE_EOG included if it comes (and then it
 * is the last); returns their number. */
int fake_expect(const fake_world *world, const int32_t *prompt, int n_prompt, int n, int32_t *out);

#endif
