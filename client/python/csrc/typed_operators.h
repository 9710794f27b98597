/* Which operators have a typed kernel: those that forward passes, backward passes and optimizers of
 * common models are made of. Names are those of at::_ops. Any operator may be added whose arguments
 * and results typed.cpp knows. */
#ifndef DT_PYTHON_TYPED_OPERATORS_H
#define DT_PYTHON_TYPED_OPERATORS_H
#include <ATen/Operators.h>

#define DT_TYPED_OPERATORS(X)                                                                      \
    X(add_Tensor)                                                                                  \
    X(add__Tensor)                                                                                 \
    X(sub_Tensor)                                                                                  \
    X(sub__Tensor)                                                                                 \
    X(mul_Tensor)                                                                                  \
    X(mul__Tensor)                                                                                 \
    X(div_Tensor)                                                                                  \
    X(div__Tensor)                                                                                 \
    X(mul_Scalar)                                                                                  \
    X(neg)                                                                                         \
    X(exp)                                                                                         \
    X(log)                                                                                         \
    X(sqrt)                                                                                        \
    X(rsqrt)                                                                                       \
    X(tanh)                                                                                        \
    X(tanh_backward)                                                                               \
    X(sigmoid)                                                                                     \
    X(sigmoid_backward)                                                                            \
    X(silu)                                                                                        \
    X(silu_backward)                                                                               \
    X(gelu)                                                                                        \
    X(gelu_backward)                                                                               \
    X(relu)                                                                                        \
    X(threshold_backward)                                                                          \
    X(sin)                                                                                         \
    X(cos)                                                                                         \
    X(pow_Tensor_Scalar)                                                                           \
    X(addcmul_)                                                                                    \
    X(addcdiv_)                                                                                    \
    X(lerp__Scalar)                                                                                \
    X(zero_)                                                                                       \
    X(fill__Scalar)                                                                                \
    X(where_self)                                                                                  \
    X(masked_fill_Scalar)                                                                          \
    X(masked_fill__Scalar)                                                                         \
    X(eq_Scalar)                                                                                   \
    X(eq_Tensor)                                                                                   \
    X(ne_Scalar)                                                                                   \
    X(lt_Tensor)                                                                                   \
    X(le_Tensor)                                                                                   \
    X(gt_Scalar)                                                                                   \
    X(ge_Scalar)                                                                                   \
    X(bitwise_and_Tensor)                                                                          \
    X(sum)                                                                                         \
    X(sum_dim_IntList)                                                                             \
    X(mean)                                                                                        \
    X(mean_dim)                                                                                    \
    X(argmax)                                                                                      \
    X(mm)                                                                                          \
    X(addmm)                                                                                       \
    X(bmm)                                                                                         \
    X(cat)                                                                                         \
    X(_unsafe_view)                                                                                \
    X(clone)                                                                                       \
    X(embedding)                                                                                   \
    X(embedding_dense_backward)                                                                    \
    X(_softmax)                                                                                    \
    X(_log_softmax)                                                                                \
    X(_log_softmax_backward_data)                                                                  \
    X(_softmax_backward_data)                                                                      \
    X(nll_loss_forward)                                                                            \
    X(nll_loss_backward)                                                                           \
    X(native_layer_norm)                                                                           \
    X(native_layer_norm_backward)                                                                  \
    X(_scaled_dot_product_flash_attention_for_cpu)                                                 \
    X(_scaled_dot_product_flash_attention_for_cpu_backward)                                        \
    X(convolution)                                                                                 \
    X(convolution_backward)                                                                        \
    X(native_batch_norm)                                                                           \
    X(native_batch_norm_backward)                                                                  \
    X(bernoulli__float)                                                                            \
    X(slice_backward)                                                                              \
    X(select_backward)                                                                             \
    X(_foreach_add__Scalar)                                                                        \
    X(_foreach_add__List)                                                                          \
    X(_foreach_mul__Scalar)                                                                        \
    X(_foreach_lerp__Scalar)                                                                       \
    X(_foreach_addcmul__Scalar)                                                                    \
    X(_foreach_addcdiv__ScalarList)                                                                \
    X(_foreach_div__ScalarList)                                                                    \
    X(_foreach_sqrt)                                                                               \
    X(_foreach_neg)

#define DT_TYPED_VIEWS(X)                                                                          \
    X(view)                                                                                        \
    X(_reshape_alias)                                                                              \
    X(transpose_int)                                                                               \
    X(t)                                                                                           \
    X(permute)                                                                                     \
    X(expand)                                                                                      \
    X(unsqueeze)                                                                                   \
    X(squeeze_dim)                                                                                 \
    X(slice_Tensor)                                                                                \
    X(select_int)                                                                                  \
    X(as_strided)                                                                                  \
    X(unbind_int)                                                                                  \
    X(split_Tensor)                                                                                \
    X(split_with_sizes)

#endif
