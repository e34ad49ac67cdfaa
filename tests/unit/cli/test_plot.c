/* test_plot.c: pictures are well-formed XML, whatever the texts, and have all their points inside
 * the axes. */
#include "support.h"

#include <ctype.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "cli/plot.h"

/* ---- a checker of well-formedness, for the subset without comments and document types ---- */

enum { MAX_DEPTH = 16, MAX_NAME = 32 };

static const char *skip_name(const char *p)
{
    while (isalnum((unsigned char)*p) || *p == '-' || *p == ':' || *p == '_')
        p++;
    return p;
}

/* Text or an attribute's value up to `end`: references are ours, nothing else is forbidden. */
static const char *check_text(const char *p, char end)
{
    for (; *p && *p != end; p++) {
        assert_false(*p == '<');
        assert_true((unsigned char)*p >= 0x20 || *p == '\n' || *p == '\t');
        if (*p == '&')
            assert_true(strncmp(p, "&lt;", 4) == 0 || strncmp(p, "&gt;", 4) == 0 ||
                        strncmp(p, "&amp;", 5) == 0 || strncmp(p, "&quot;", 6) == 0);
    }
    return p;
}

/* From behind a tag's name to behind its '>'; *is_empty: it was "/>". */
static const char *check_attributes(const char *p, bool *is_empty)
{
    for (;;) {
        const char *blank = p;
        while (isspace((unsigned char)*p))
            p++;
        if (*p == '>' || (*p == '/' && p[1] == '>')) {
            *is_empty = *p == '/';
            return p + 1 + *is_empty;
        }
        assert_true(p > blank);
        const char *end = skip_name(p);
        assert_true(end > p && end[0] == '=' && end[1] == '"');
        p = check_text(end + 2, '"');
        assert_true(*p == '"');
        p++;
    }
}

static void check_xml(const char *p)
{
    char open[MAX_DEPTH][MAX_NAME];
    int depth = 0, n_roots = 0;
    assert_true(strncmp(p, "<?xml ", 6) == 0);
    p = strstr(p, "?>") + 2;
    while (*(p = check_text(p, '<'))) {
        bool closes = p[1] == '/', is_empty = false;
        const char *name = p + 1 + closes;
        p = skip_name(name);
        int n = (int)(p - name);
        assert_in_range(n, 1, MAX_NAME - 1);
        if (closes) {
            assert_true(depth > 0 && *p == '>');
            depth--;
            assert_true(strlen(open[depth]) == (size_t)n &&
                        strncmp(open[depth], name, (size_t)n) == 0);
            p++;
            continue;
        }
        assert_in_range(depth, 0, MAX_DEPTH - 1);
        snprintf(open[depth], MAX_NAME, "%.*s", n, name);
        n_roots += depth == 0;
        p = check_attributes(p, &is_empty);
        depth += !is_empty;
    }
    assert_int_equal(depth, 0);
    assert_int_equal(n_roots, 1);
}

/* ---- pictures ---- */

static char *draw(const char *title, const double *x, const double *y, int n, bool with_guide)
{
    static const double guide_x[] = {0, 64}, guide_y[] = {0, 1e6};
    const ea_plot_series series[] = {{"curve <&>", x, y, n, false},
                                     {"guide \"", guide_x, guide_y, 2, true}};
    const ea_plot_panel panels[] = {{"x & y", "ms", series, with_guide ? 2 : 1},
                                    {"x", "t/s", series, 1}};
    ea_buf out = EA_BUF_INIT;
    ea_plot_svg(&(ea_plot){title, "sub <title>", panels, 2}, &out);
    assert_false(out.failed);
    size_t len = 0;
    for (size_t i = 0; i < out.n; i += len)
        assert_true((len = ea_utf8_valid_len(out.data + i, out.n - i)) > 0);
    return ea_buf_take(&out);
}

static void texts_cannot_break_the_picture(void **state)
{
    (void)state;
    static const char *const titles[] = {"plain",
                                         "",
                                         "<script>alert(1)</script>",
                                         "a & b \"c\" 'd'",
                                         "]]>&lt;",
                                         "\x01\x02\x1b[31m\x7f",
                                         "\xff\xfe broken",
                                         "caf\xc3\xa9 \xe2\x82\xac",
                                         "cut \xe2\x82"};
    const double x[] = {1, 2, 3}, y[] = {5, 6, 8};
    for (size_t i = 0; i < EA_ARRAY_LEN(titles); i++) {
        char *svg = draw(titles[i], x, y, 3, true);
        check_xml(svg);
        assert_null(strstr(svg, "<script>"));
        ea_free(svg);
    }
}

/* Every circle lies between the axes' ends, which the clip path's rectangle tells. */
static int check_points(const char *svg)
{
    int n = 0;
    double left[2], top[2], width[2], height[2];
    const char *p = svg;
    for (int i = 0; i < 2; i++) {
        p = strstr(p, "<clipPath");
        assert_non_null(p);
        assert_int_equal(sscanf(strstr(p, "<rect"),
                                "<rect x=\"%lf\" y=\"%lf\" width=\"%lf\" height=\"%lf\"", &left[i],
                                &top[i], &width[i], &height[i]),
                         4);
        p++;
    }
    for (p = svg; (p = strstr(p, "<circle")); p++, n++) {
        double cx, cy;
        assert_int_equal(sscanf(p, "<circle cx=\"%lf\" cy=\"%lf\"", &cx, &cy), 2);
        int panel = cx >= left[1];
        assert_true(cx >= left[panel] && cx <= left[panel] + width[panel]);
        assert_true(cy >= top[panel] && cy <= top[panel] + height[panel]);
    }
    return n;
}

static void points_lie_inside_the_axes(void **state)
{
    (void)state;
    const struct {
        double x[4], y[4];
        int n;
    } cases[] = {
        {{1}, {1}, 1},
        {{0}, {0}, 1},
        {{1, 2, 3, 64}, {98, 99.5, 120, 300}, 4},
        {{1, 2, 3, 4}, {1e-9, 2e-9, 3e-9, 1e-9}, 4},
        {{1, 10, 100, 256}, {1e12, 5e11, 3, 0}, 4},
        {{1, 2, 3, 4}, {0, 0, 0, 0}, 4},
    };
    for (size_t i = 0; i < EA_ARRAY_LEN(cases); i++)
        for (int guide = 0; guide < 2; guide++) {
            char *svg = draw("points", cases[i].x, cases[i].y, cases[i].n, guide != 0);
            check_xml(svg);
            assert_int_equal(check_points(svg), 2 * cases[i].n);
            assert_null(strstr(svg, "nan"));
            assert_null(strstr(svg, "inf"));
            ea_free(svg);
        }
}

static void axes_have_few_round_ticks(void **state)
{
    (void)state;
    const double x[] = {1, 64}, y[] = {98, 300};
    char *svg = draw("ticks", x, y, 2, false);
    assert_non_null(strstr(svg, ">300</text>"));
    assert_non_null(strstr(svg, ">50</text>"));
    assert_non_null(strstr(svg, ">60</text>"));
    assert_null(strstr(svg, ">25</text>"));
    ea_free(svg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_cannot_break_the_picture),
        cmocka_unit_test(points_lie_inside_the_axes),
        cmocka_unit_test(axes_have_few_round_ticks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
