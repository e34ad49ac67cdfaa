/* plot.c: see plot.h. SVG 1.1; numbers have two decimals of a pixel. */
#include "cli/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"

/* Pixels. */
enum {
    PANEL_WIDTH = 520,
    PANEL_HEIGHT = 330,
    GAP = 84,    /* beside a panel, for the numbers of its y axis */
    TOP = 92,    /* above the panels, for title and labels */
    BOTTOM = 64, /* below, for the x axis */
    RIGHT = 36,
    MAX_TICKS = 8,
};

static const char *const colours[] = {"#1f6feb", "#d1580a", "#1a7f4b", "#8250df"};

/* Where a panel's values lie. */
typedef struct frame {
    double left, top;      /* pixels */
    double x_max, y_max;   /* values at the right and upper end */
    double x_step, y_step; /* of the ticks */
} frame;

static double to_x(const frame *f, double x)
{
    return f->left + x / f->x_max * PANEL_WIDTH;
}

static double to_y(const frame *f, double y)
{
    return f->top + PANEL_HEIGHT - y / f->y_max * PANEL_HEIGHT;
}

/* Text content or attribute. XML 1.0 allows no control characters but tab and line ends. */
static void put_escaped(ea_buf *out, const char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n;) {
        size_t len = ea_utf8_valid_len(text + i, n - i);
        unsigned char c = (unsigned char)text[i];
        if (len == 0 || (c < 0x20 && c != '\t' && c != '\n') || c == 0x7f)
            ea_buf_puts(out, "\xef\xbf\xbd");
        else if (c == '<')
            ea_buf_puts(out, "&lt;");
        else if (c == '>')
            ea_buf_puts(out, "&gt;");
        else if (c == '&')
            ea_buf_puts(out, "&amp;");
        else if (c == '"')
            ea_buf_puts(out, "&quot;");
        else
            ea_buf_add(out, text + i, len);
        i += len ? len : 1;
    }
}

static void put_text(ea_buf *out, double x, double y, const char *attributes, const char *text)
{
    ea_buf_printf(out, "<text x=\"%.2f\" y=\"%.2f\" %s>", x, y, attributes);
    put_escaped(out, text);
    ea_buf_puts(out, "</text>\n");
}

/* 1, 2 or 5 times a power of ten, so that `max` has at most MAX_TICKS of them. */
static double tick_step(double max)
{
    double step = pow(10, floor(log10(max / MAX_TICKS)));
    static const double factors[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (max / (step * factors[i]) <= MAX_TICKS)
            return step * factors[i];
    return step * 10;
}

static void set_frame(frame *f, const ea_plot_panel *panel, int index)
{
    f->left = GAP + index * (PANEL_WIDTH + GAP);
    f->top = TOP;
    f->x_max = f->y_max = 0;
    for (int s = 0; s < panel->n_series; s++)
        for (int i = 0; i < panel->series[s].n && !panel->series[s].is_guide; i++) {
            f->x_max = fmax(f->x_max, panel->series[s].x[i]);
            f->y_max = fmax(f->y_max, panel->series[s].y[i]);
        }
    f->x_max = f->x_max > 0 ? f->x_max : 1;
    f->y_max = f->y_max > 0 ? f->y_max * 1.06 : 1;
    f->x_step = fmax(tick_step(f->x_max), 1); /* x counts things */
    f->y_step = tick_step(f->y_max);
    f->x_max *= 1.02; /* the last point stands free of the edge */
}

static void put_axes(ea_buf *out, const frame *f, const ea_plot_panel *panel)
{
    char number[32];
    for (int i = 0; i * f->y_step <= f->y_max; i++) {
        double y = to_y(f, i * f->y_step);
        ea_buf_printf(out,
                      "<line x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\" stroke=\"%s\"/>\n",
                      f->left, y, f->left + PANEL_WIDTH, y, i ? "#e6e8eb" : "#57606a");
        snprintf(number, sizeof number, "%.10g", i * f->y_step);
        put_text(out, f->left - 8, y + 4, "text-anchor=\"end\" class=\"tick\"", number);
    }
    for (int i = 0; i * f->x_step <= f->x_max; i++) {
        double x = to_x(f, i * f->x_step), y = f->top + PANEL_HEIGHT;
        ea_buf_printf(
            out, "<line x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\" stroke=\"#57606a\"/>\n", x,
            y, x, y + 5);
        snprintf(number, sizeof number, "%.10g", i * f->x_step);
        put_text(out, x, y + 20, "text-anchor=\"middle\" class=\"tick\"", number);
    }
    put_text(out, f->left + PANEL_WIDTH / 2.0, f->top + PANEL_HEIGHT + 44,
             "text-anchor=\"middle\" class=\"label\"", panel->x_label);
    put_text(out, f->left - GAP / 2.0 - 6, f->top - 18, "class=\"label\"", panel->y_label);
}

static void put_series(ea_buf *out, const frame *f, const ea_plot_series *s, const char *colour,
                       int panel)
{
    ea_buf_printf(out,
                  "<polyline clip-path=\"url(#panel%d)\" fill=\"none\" stroke=\"%s\" "
                  "stroke-width=\"%s\"%s points=\"",
                  panel, colour, s->is_guide ? "1.25" : "2",
                  s->is_guide ? " stroke-dasharray=\"5 4\"" : " stroke-linejoin=\"round\"");
    for (int i = 0; i < s->n; i++)
        ea_buf_printf(out, "%s%.2f,%.2f", i ? " " : "", to_x(f, s->x[i]), to_y(f, s->y[i]));
    ea_buf_puts(out, "\"/>\n");
    for (int i = 0; i < s->n && !s->is_guide; i++)
        ea_buf_printf(out,
                      "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"2.6\" fill=\"%s\">"
                      "<title>%.6g: %.6g</title></circle>\n",
                      to_x(f, s->x[i]), to_y(f, s->y[i]), colour, s->x[i], s->y[i]);
}

/* Labels of the curves, in the lower right corner, which growing ones leave free. */
static void put_legend(ea_buf *out, const frame *f, const ea_plot_panel *panel, int n,
                       const char *const *of)
{
    for (int s = 0; s < n; s++) {
        double x = f->left + PANEL_WIDTH - 36, y = f->top + PANEL_HEIGHT - 16 - 19 * (n - 1 - s);
        ea_buf_printf(out,
                      "<line x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\" stroke=\"%s\" "
                      "stroke-width=\"2\"%s/>\n",
                      x, y - 4, x + 22, y - 4, of[s],
                      panel->series[s].is_guide ? " stroke-dasharray=\"5 4\"" : "");
        put_text(out, x - 8, y, "text-anchor=\"end\" class=\"tick halo\"", panel->series[s].label);
    }
}

static void put_panel(ea_buf *out, const ea_plot_panel *panel, int index)
{
    enum { MAX_SERIES = 8 };
    const char *of[MAX_SERIES];
    frame f;
    int n = panel->n_series < MAX_SERIES ? panel->n_series : MAX_SERIES;
    set_frame(&f, panel, index);
    ea_buf_printf(out,
                  "<clipPath id=\"panel%d\"><rect x=\"%.2f\" y=\"%.2f\" width=\"%d\" "
                  "height=\"%d\"/></clipPath>\n",
                  index, f.left, f.top, PANEL_WIDTH, PANEL_HEIGHT);
    put_axes(out, &f, panel);
    for (int s = 0, next = index; s < n; s++)
        of[s] =
            panel->series[s].is_guide ? "#8c959f" : colours[next++ % (int)EA_ARRAY_LEN(colours)];
    for (int s = n; s-- > 0;) /* the first one on top */
        put_series(out, &f, &panel->series[s], of[s], index);
    put_legend(out, &f, panel, n, of);
}

void ea_plot_svg(const ea_plot *plot, ea_buf *out)
{
    int width = GAP + plot->n_panels * (PANEL_WIDTH + GAP) - GAP + RIGHT,
        height = TOP + PANEL_HEIGHT + BOTTOM;
    ea_buf_printf(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
        "viewBox=\"0 0 %d %d\" font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\">"
        "\n<style>.tick{font-size:12px;fill:#57606a}.label{font-size:13px;fill:#24292f}"
        ".halo{paint-order:stroke;stroke:#ffffff;stroke-width:4px}</style>\n"
        "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
        width, height, width, height, width, height);
    put_text(out, 24, 30, "font-size=\"18\" font-weight=\"600\" fill=\"#24292f\"", plot->title);
    put_text(out, 24, 51, "class=\"tick\"", plot->subtitle);
    for (int i = 0; i < plot->n_panels; i++)
        put_panel(out, &plot->panels[i], i);
    ea_buf_puts(out, "</svg>\n");
}
