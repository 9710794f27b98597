/* The table of conformance: extend it when a backend learns an operator. */
#include <stddef.h>

#include "conformance.h"

static const dt_conf_shapes_t shapes[] = {
    /* U: one tensor */
    {'U', {""}},
    {'U', {"1"}},
    {'U', {"7"}},
    {'U', {"8v"}},
    {'U', {"0"}},
    {'U', {"2x3"}},
    {'U', {"4x5t"}},
    {'U', {"6x4s"}},
    {'U', {"3x4e"}},
    {'U', {"2x3x4p"}},
    {'U', {"2x0x3"}},
    {'U', {"2x1x3x2"}},
    {'U', {"1x5t"}},
    {'U', {"33x17"}},
    /* P: two that broadcast, or do not */
    {'P', {"", ""}},
    {'P', {"3", "3"}},
    {'P', {"8v", "8"}},
    {'P', {"2x3", "3"}},
    {'P', {"2x3", "2x1"}},
    {'P', {"2x3", ""}},
    {'P', {"", "2x3"}},
    {'P', {"4x5t", "4x5t"}},
    {'P', {"4x5t", "4x5"}},
    {'P', {"4x1", "1x5"}},
    {'P', {"0x3", "3"}},
    {'P', {"6x4s", "4"}},
    {'P', {"3x4e", "3x4"}},
    {'P', {"3x4", "3x4e"}},
    {'P', {"2x3x4p", "2x3x4p"}},
    {'P', {"2x3x4p", "4"}},
    {'P', {"2x3", "4"}},
    /* W: three that broadcast */
    {'W', {"2x3", "2x3", "2x3"}},
    {'W', {"3", "2x1", ""}},
    {'W', {"4x5t", "5", "4x5"}},
    {'W', {"", "", ""}},
    {'W', {"0", "1", "0"}},
    /* M, B, A: factors of mm, bmm, addmm (what is added first) */
    {'M', {"3x4", "4x5"}},
    {'M', {"3x4t", "4x5"}},
    {'M', {"3x4", "4x5t"}},
    {'M', {"6x4s", "4x2t"}},
    {'M', {"0x4", "4x5"}},
    {'M', {"3x0", "0x5"}},
    {'M', {"1x1", "1x1"}},
    {'M', {"17x33", "33x9"}},
    {'M', {"3x4", "3x5"}},
    {'M', {"4", "4x5"}},
    {'B', {"2x3x4", "2x4x5"}},
    {'B', {"2x3x4p", "2x4x5"}},
    {'B', {"0x3x4", "0x4x5"}},
    {'B', {"2x3x4", "3x4x5"}},
    {'A', {"5", "3x4", "4x5"}},
    {'A', {"3x5", "3x4t", "4x5t"}},
    {'A', {"", "3x4", "4x5"}},
    {'A', {"3x1", "3x4", "4x5"}},
    {'A', {"5", "3x0", "0x5"}},
    {'A', {"4", "3x4", "4x5"}},
    /* R: at least two dimensions; V: six elements, for view; S: a size of 1 */
    {'R', {"2x3"}},
    {'R', {"4x5t"}},
    {'R', {"6x4s"}},
    {'R', {"2x3x4p"}},
    {'R', {"3x4e"}},
    {'R', {"2x0x3"}},
    {'R', {"3x1"}},
    {'V', {"6"}},
    {'V', {"2x3"}},
    {'V', {"2x3t"}},
    {'V', {"6x1"}},
    {'V', {"6e"}},
    {'S', {"2x1x3"}},
    {'S', {"1x1"}},
    {'S', {"3x4"}},
    {'S', {""}},
    {'S', {"1x3t"}},
    /* C: two for cat */
    {'C', {"2x3", "2x3"}},
    {'C', {"2x3", "2x3t"}},
    {'C', {"2x3", "0"}},
    {'C', {"0x3", "2x3"}},
    {'C', {"3", "3"}},
    {'C', {"2x3", "2"}},
    /* N: no tensor at all */
    {'N', {NULL}},
};

#define FLOATS "fd"
#define ALL    "fdib"
#define BINARY(op)                                                                                 \
    {op, "@0 @1", 'P', ALL, true, 0, false}, {op, "@0 i:2", 'U', ALL, false, 0, false},            \
        {op, "@0 f:2.5", 'U', ALL, false, 0, false},                                               \
    {                                                                                              \
        op, "@0 b:1", 'U', ALL, false, 0, false                                                    \
    }
#define COMPARE(op)                                                                                \
    {op ".Tensor", "@0 @1", 'P', ALL, true, 0, false},                                             \
        {op ".Scalar", "@0 i:1", 'U', ALL, false, 0, false},                                       \
    {                                                                                              \
        op ".Scalar", "@0 f:0.5", 'U', ALL, false, 0, false                                        \
    }
#define UNARY(op, tolerance)                                                                       \
    {                                                                                              \
        op, "@0", 'U', ALL, false, tolerance, false                                                \
    }
#define DIMS(op, tolerance)                                                                        \
    {op, "@0 l:0", 'U', ALL, false, tolerance, false},                                             \
        {op, "@0 l:-1 b:1", 'U', ALL, false, tolerance, false},                                    \
        {op, "@0 l:0,1", 'R', ALL, false, tolerance, false},                                       \
        {op, "@0 l:1,-1", 'R', ALL, false, tolerance, false},                                      \
    {                                                                                              \
        op, "@0 l:5", 'R', "f", false, tolerance, false                                            \
    }

static const dt_conf_row_t rows[] = {
    BINARY("aten::add.Tensor"),
    {"aten::add.Tensor", "@0 @1 i:3", 'P', ALL, true, 2, false},
    {"aten::add.Tensor", "@0 @1 f:0.5", 'P', ALL, true, 2, false},
    {"aten::add.Scalar", "@0 f:2.5 i:2", 'U', ALL, false, 2, false},
    BINARY("aten::add_.Tensor"),
    {"aten::add_.Tensor", "@0 @0", 'U', ALL, false, 0, false},
    {"aten::add_.Scalar", "@0 i:2", 'U', ALL, false, 0, false},
    BINARY("aten::sub.Tensor"),
    {"aten::sub.Tensor", "@0 @1 i:3", 'P', ALL, true, 2, false},
    {"aten::sub.Scalar", "@0 f:2.5", 'U', ALL, false, 0, false},
    BINARY("aten::sub_.Tensor"),
    BINARY("aten::mul.Tensor"),
    {"aten::mul.Scalar", "@0 f:2.5", 'U', ALL, false, 0, false},
    BINARY("aten::mul_.Tensor"),
    {"aten::mul_.Scalar", "@0 i:2", 'U', ALL, false, 0, false},
    BINARY("aten::div.Tensor"),
    {"aten::div.Scalar", "@0 f:2.5", 'U', ALL, false, 1, false},
    BINARY("aten::div_.Tensor"),
    {"aten::maximum", "@0 @1", 'P', ALL, true, 0, false},
    {"aten::minimum", "@0 @1", 'P', ALL, true, 0, false},
    {"aten::logical_and", "@0 @1", 'P', ALL, true, 0, false},
    {"aten::logical_or", "@0 @1", 'P', ALL, true, 0, false},
    {"aten::threshold_backward", "@0 @1 i:0", 'P', "fdi", false, 0, false},
    {"aten::threshold_backward", "@0 @1 f:0.5", 'P', FLOATS, false, 0, false},
    COMPARE("aten::eq"),
    COMPARE("aten::ne"),
    COMPARE("aten::lt"),
    COMPARE("aten::le"),
    COMPARE("aten::gt"),
    COMPARE("aten::ge"),
    {"aten::where.self", "@0b @1 @2", 'W', ALL, true, 0, false},
    {"aten::where.self", "@0b @1 f:2", 'W', ALL, false, 0, false},
    UNARY("aten::neg", 0),
    {"aten::abs", "@0", 'U', "fdi", false, 0, false},
    UNARY("aten::relu", 0),
    UNARY("aten::relu_", 0),
    UNARY("aten::exp", 4),
    UNARY("aten::log", 4),
    UNARY("aten::sqrt", 1),
    UNARY("aten::rsqrt", 4),
    UNARY("aten::reciprocal", 1),
    UNARY("aten::tanh", 4),
    UNARY("aten::sigmoid", 4),
    UNARY("aten::logical_not", 0),
    /* views */
    {"aten::view", "@0 l:3,2", 'V', ALL, false, 0, false},
    {"aten::view", "@0 l:-1", 'U', "f", false, 0, false},
    {"aten::view", "@0 l:2,-1", 'V', "f", false, 0, false},
    {"aten::view", "@0 l:4,2", 'V', "f", false, 0, false},
    {"aten::reshape", "@0 l:3,2", 'V', ALL, false, 0, false},
    {"aten::reshape", "@0 l:-1", 'U', "fi", false, 0, false},
    {"aten::transpose.int", "@0 i:0 i:1", 'R', ALL, false, 0, false},
    {"aten::transpose.int", "@0 i:-1 i:0", 'U', "f", false, 0, false},
    {"aten::t", "@0", 'U', "f", false, 0, false},
    {"aten::permute", "@0 l:1,0", 'R', "fb", false, 0, false},
    {"aten::permute", "@0 l:2,0,-2", 'R', "f", false, 0, false},
    {"aten::squeeze", "@0", 'S', "f", false, 0, false},
    {"aten::squeeze.dim", "@0 i:1", 'S', "f", false, 0, false},
    {"aten::squeeze.dim", "@0 i:0", 'S', "f", false, 0, false},
    {"aten::unsqueeze", "@0 i:0", 'U', "f", false, 0, false},
    {"aten::unsqueeze", "@0 i:-1", 'U', "f", false, 0, false},
    {"aten::unsqueeze", "@0 i:1", 'R', "f", false, 0, false},
    {"aten::expand", "@0 l:2,3,4", 'U', "f", false, 0, false},
    {"aten::expand", "@0 l:5,3,4", 'R', "f", false, 0, false},
    {"aten::expand", "@0 l:-1,2,-1", 'S', "f", false, 0, false},
    {"aten::slice.Tensor", "@0 i:0 i:1", 'U', "fi", false, 0, false},
    {"aten::slice.Tensor", "@0 i:-1 i:-2 n i:2", 'U', "f", false, 0, false},
    {"aten::slice.Tensor", "@0 i:1 i:0 i:2", 'R', "f", false, 0, false},
    {"aten::slice.Tensor", "@0 i:0 i:2 i:1", 'R', "f", false, 0, false},
    {"aten::select.int", "@0 i:0 i:0", 'U', "f", false, 0, false},
    {"aten::select.int", "@0 i:1 i:-1", 'R', "fb", false, 0, false},
    {"aten::select.int", "@0 i:0 i:9", 'R', "f", false, 0, false},
    {"aten::as_strided", "@0 l:2,2 l:1,2", 'V', "f", false, 0, false},
    {"aten::as_strided", "@0 l:2,2 l:1,2 i:1", 'V', "f", false, 0, false},
    {"aten::as_strided", "@0 l:90,90 l:90,1", 'V', "f", false, 0, false},
    {"aten::alias", "@0", 'U', "f", false, 0, false},
    {"aten::detach", "@0", 'U', "f", false, 0, false},
    /* copies, factories, writes */
    {"aten::clone", "@0", 'U', ALL, false, 0, false},
    {"aten::clone", "@0 m:0", 'U', "f", false, 0, false},
    {"aten::clone", "@0 m:2", 'U', "f", false, 0, false},
    {"aten::contiguous", "@0", 'U', ALL, false, 0, false},
    {"aten::_to_copy", "@0 d:f", 'U', ALL, false, 0, false},
    {"aten::_to_copy", "@0 d:i", 'R', ALL, false, 0, false},
    {"aten::_to_copy", "@0 d:b", 'U', ALL, false, 0, false},
    {"aten::to.dtype", "@0 d:d", 'U', ALL, false, 0, false},
    {"aten::to.dtype", "@0 d:f b:0 b:1", 'U', ALL, false, 0, false},
    {"aten::copy_", "@0 @1", 'P', "fd", true, 0, false},
    {"aten::copy_", "@0 f:2.5", 'U', ALL, false, 0, false},
    {"aten::fill_.Scalar", "@0 f:2.5", 'U', ALL, false, 0, false},
    {"aten::fill_.Scalar", "@0 i:3", 'U', ALL, false, 0, false},
    {"aten::zero_", "@0", 'U', ALL, false, 0, false},
    {"aten::empty.memory_format", "l:2,3 d:d", 'N', "f", false, 0, true},
    {"aten::empty_strided", "l:2,3 l:1,2", 'N', "f", false, 0, true},
    {"aten::zeros", "l:2,3", 'N', "f", false, 0, false},
    {"aten::zeros", "l:0 d:i", 'N', "f", false, 0, false},
    {"aten::ones", "l:2,3 d:b", 'N', "f", false, 0, false},
    {"aten::full", "l:2,3 f:1.5", 'N', "f", false, 0, false},
    {"aten::full", "l:2,3 i:7", 'N', "f", false, 0, false},
    {"aten::full", "l:2 b:1", 'N', "f", false, 0, false},
    {"aten::full", "l:2 i:7 d:d", 'N', "f", false, 0, false},
    {"aten::full", "l:-2 i:7", 'N', "f", false, 0, false},
    {"aten::arange", "i:5", 'N', "f", false, 0, false},
    {"aten::arange", "f:4.5", 'N', "f", false, 1, false},
    {"aten::arange", "i:5 d:d", 'N', "f", false, 1, false},
    {"aten::arange", "i:-1", 'N', "f", false, 0, false},
    {"aten::arange.start", "i:2 i:9", 'N', "f", false, 0, false},
    {"aten::arange.start_step", "f:0 f:1 f:0.1", 'N', "f", false, 1, false},
    {"aten::arange.start_step", "i:9 i:2 i:-2", 'N', "f", false, 0, false},
    {"aten::arange.start_step", "i:0 i:5 i:0", 'N', "f", false, 0, false},
    {"aten::empty_like", "@0", 'U', ALL, false, 0, true},
    {"aten::zeros_like", "@0", 'U', ALL, false, 0, false},
    {"aten::ones_like", "@0 d:i", 'U', "f", false, 0, false},
    {"aten::cat", "[@0,@1] i:0", 'C', ALL, true, 0, false},
    {"aten::cat", "[@0,@1] i:-1", 'C', "f", false, 0, false},
    /* reductions */
    UNARY("aten::sum", 8),
    {"aten::sum", "@0 d:d", 'U', ALL, false, 8, false},
    DIMS("aten::sum.dim_IntList", 8),
    {"aten::sum.dim_IntList", "@0 n b:1", 'R', ALL, false, 8, false},
    UNARY("aten::mean", 8),
    DIMS("aten::mean.dim", 8),
    {"aten::mean.dim", "@0 l:0 b:0 d:f", 'R', ALL, false, 8, false},
    UNARY("aten::max", 0),
    DIMS("aten::amax", 0),
    {"aten::amax", "@0", 'U', ALL, false, 0, false},
    {"aten::argmax", "@0", 'U', ALL, false, 0, false},
    {"aten::argmax", "@0 i:0", 'U', "fdi", false, 0, false},
    {"aten::argmax", "@0 i:-1 b:1", 'R', "fdi", false, 0, false},
    {"aten::_softmax", "@0 i:-1 b:0", 'U', FLOATS, false, 8, false},
    {"aten::_softmax", "@0 i:0 b:0", 'R', FLOATS, false, 8, false},
    {"aten::_log_softmax", "@0 i:-1 b:0", 'U', FLOATS, false, 8, false},
    {"aten::softmax.int", "@0 i:0", 'U', FLOATS, false, 8, false},
    {"aten::softmax.int", "@0 i:0 d:f", 'R', "fib", false, 8, false},
    /* products */
    {"aten::mm", "@0 @1", 'M', ALL, false, 64, false},
    {"aten::mm", "@0 @1", 'M', "fd", true, 64, false},
    {"aten::bmm", "@0 @1", 'B', "fdi", false, 64, false},
    {"aten::addmm", "@0 @1 @2", 'A', "fdi", false, 64, false},
    {"aten::addmm", "@0 @1 @2 f:0.5 f:2", 'A', FLOATS, false, 64, false},
    {"aten::addmm", "@0 @1 @2 i:0 i:2", 'A', "fdi", false, 64, false},
};

const dt_conf_row_t *dt_conf_rows(size_t *ret_count)
{
    *ret_count = sizeof rows / sizeof *rows;
    return rows;
}

const dt_conf_shapes_t *dt_conf_shapes(size_t *ret_count)
{
    *ret_count = sizeof shapes / sizeof *shapes;
    return shapes;
}
