/* plot.h: curves as a self-contained SVG picture. Pure function of its input. */
#ifndef EA_CLI_PLOT_H
#define EA_CLI_PLOT_H

#include "base/buf.h"

/* n points, x ascending; finite, and neither x nor y negative. */
typedef struct ea_plot_series {
    const char *label;
    const double *x, *y;
    int n;
    bool is_guide; /* dashed, without points, cut off where the others end */
} ea_plot_series;

/* One pair of axes, both from 0; the y axis ends a little above the largest y of what is no guide.
 */
typedef struct ea_plot_panel {
    const char *x_label, *y_label;
    const ea_plot_series *series;
    int n_series;
} ea_plot_panel;

/* Panels side by side under a title and a line of smaller text. Texts are UTF-8; any bytes that XML
 * does not allow are replaced. */
typedef struct ea_plot {
    const char *title, *subtitle;
    const ea_plot_panel *panels;
    int n_panels;
} ea_plot;

void ea_plot_svg(const ea_plot *plot, ea_buf *out);

#endif
