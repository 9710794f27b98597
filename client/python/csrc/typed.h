/* Operators with a kernel of their own type; see typed.cpp. */
#ifndef DT_PYTHON_TYPED_H
#define DT_PYTHON_TYPED_H
#include <set>
#include <string>
#include <torch/library.h>

namespace dt_pu
{

/* Register them, and add their names ("aten::add.Tensor") to `done`. */
void register_typed(torch::Library &lib, std::set<std::string> &done);

} // namespace dt_pu
#endif
