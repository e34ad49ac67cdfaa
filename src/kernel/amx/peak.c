/* peak.c: see kernel/peak.h. Four tiles of sums, two of each factor: what a product
 * without any loads would do. */
#include "kernel/peak.h"

#include "kernel/amx/tile.h"

double ea_peak_int8__amx(int rounds)
{
    ea_tile_config c = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        c.row_bytes[t] = 64;
        c.rows[t] = 16;
    }
    TILE_CONFIG(&c);
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    TILE_ZERO(4);
    TILE_ZERO(5);
    TILE_ZERO(6);
    TILE_ZERO(7);
    for (int r = 0; r < rounds; r++) {
        TILE_DOT_SS(0, 4, 6);
        TILE_DOT_SS(1, 4, 7);
        TILE_DOT_SS(2, 5, 6);
        TILE_DOT_SS(3, 5, 7);
    }
    TILE_RELEASE();
    return (double)rounds * 4 * (16 * 16 * 64);
}
