/* kv.h: who owns which KV page. A pool of equal pages (page_tokens positions each), a page table
 * for every running sequence, and the prefix tree over all pages, in which a timeline finds what
 * was computed before, by whomever. The bytes themselves are the device's; it is asked only to
 * copy.
 *
 * The tree: a node is a page in use. It holds the tokens and keys of its filled positions, and
 * hangs on the page before it in the timeline. Only full pages have children. Invariants:
 *  - A full page is never written again; any number of sequences refer to it. There is at most one
 *    full page with a given last key: a sequence that fills a second one gives it up for the first.
 *  - A page that is not full has at most one reference: the sequence that writes it. Others copy
 * its beginning. Positions already filled never change while the page is in use.
 *  - A sequence refers to all pages of its timeline, so below an unreferenced page there are only
 *    unreferenced ones, and every unreferenced page can be evicted, leaves first.
 *  - Positions become visible in the tree by ea_kv_commit, that is when the step that computed them
 *    is done, also while their sequence runs; they stay after it was released.
 *
 * Everything belongs to the engine thread. All memory is taken by ea_kv_create and ea_kv_seq_init;
 * the other functions allocate nothing, and none of them scans all pages. */
#ifndef EA_KV_KV_H
#define EA_KV_KV_H

#include "base/error.h"
#include "kv/key.h"

typedef struct ea_kv ea_kv;

typedef struct ea_kv_params {
    int n_pages;     /* >= 1 */
    int page_tokens; /* positions of a page, >= 1 */
    /* Copy the first n_pos positions of page src to page dst, now. */
    void (*copy)(void *user, int32_t dst, int32_t src, int n_pos);
    void *copy_user;
} ea_kv_params;

/* The page table of one sequence. Fields are read by the engine, written only here. */
typedef struct ea_kv_seq {
    int32_t *pages; /* pages[i]: positions i * page_tokens .. */
    int max_pages;
    int n_pages;   /* in the table: those with tokens, then those reserved ahead */
    int n_tokens;  /* positions that hold KV */
    ea_key128 key; /* of the last of them; the root while there is none */
} ea_kv_seq;

/* What the tree holds of the sequence's page in progress, beyond what the sequence has. */
typedef struct ea_kv_match {
    int32_t src;   /* a page that begins like ours; -1: nothing more is there */
    int n_tokens;  /* length of the timeline with it */
    ea_key128 key; /* of that length */
} ea_kv_match;

typedef struct ea_kv_counts {
    int n_pages, n_free;
    int n_cached; /* in the tree, referred to by no sequence */
    uint64_t n_evicted, n_copied, n_merged;
} ea_kv_counts;

ea_status ea_kv_create(const ea_kv_params *params, ea_kv **out, ea_error *err) EA_MUST_CHECK;
void ea_kv_destroy(ea_kv *kv); /* NULL is fine; sequences are done before */
ea_kv_counts ea_kv_count(const ea_kv *kv);

/* A table for timelines of up to max_pages pages. */
ea_status ea_kv_seq_init(ea_kv_seq *seq, int max_pages, ea_error *err) EA_MUST_CHECK;
void ea_kv_seq_done(ea_kv_seq *seq); /* must be released */

/* Begin an empty timeline. */
void ea_kv_seq_start(ea_kv_seq *seq, ea_key128 root);

/* Extend the sequence by all full pages of the tree that continue it along tokens[0..limit), and
 * tell in *m what a further page offers. tokens is the whole timeline, its first seq->n_tokens
 * being what the sequence holds already. */
void ea_kv_match_full(ea_kv *kv, ea_kv_seq *seq, const int32_t *tokens, int limit, ea_kv_match *m);

/* Take what *m offers (from ea_kv_match_full just now): continue that page in place if nobody else
 * can see the difference, else copy its beginning. False if there is no page for the copy; the
 * sequence is then as before. */
bool ea_kv_match_part(ea_kv *kv, ea_kv_seq *seq, const int32_t *tokens, const ea_kv_match *m);

/* Get pages for n more positions, evicting unreferenced ones; returns for how many of the n there
 * is room (the table's max_pages is a bound too). These positions may then be written by a step. */
int ea_kv_reserve(ea_kv *kv, ea_kv_seq *seq, int n);

/* A step has written the next n positions, with tokens[seq->n_tokens ..]; they were reserved. */
void ea_kv_commit(ea_kv *kv, ea_kv_seq *seq, const int32_t *tokens, int n);

/* Give up all pages. What they hold stays in the tree until the memory is wanted. */
void ea_kv_release(ea_kv *kv, ea_kv_seq *seq);

/* What starting this timeline would take, changing nothing: *n_tokens that full pages of the tree
 * hold, and *n_need pages that would have to come out of n_free + n_cached for it to reach n + 1
 * positions (pages now cached that it would refer to included). */
void ea_kv_peek(const ea_kv *kv, ea_key128 root, const int32_t *tokens, int n, int *n_tokens,
                int *n_need);

/* For tests: recompute everything from the tables of all live sequences and compare; aborts with
 * EA_ASSERT at the first difference. O(pages * page_tokens). */
void ea_kv_check(const ea_kv *kv, const ea_kv_seq *const *seqs, int n_seqs);

#endif
