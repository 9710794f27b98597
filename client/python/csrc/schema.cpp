// Operators: what their schemas say, worked out once.
#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>
#include <unordered_map>

#include "internal.h"

namespace dt_pu
{
namespace
{

Kind kind_of(const c10::TypePtr &type)
{
    using c10::TypeKind;
    switch (type->kind()) {
    case TypeKind::OptionalType:
        return kind_of(type->castRaw<c10::OptionalType>()->getElementType());
    case TypeKind::ListType:
        return kind_of(type->castRaw<c10::ListType>()->getElementType()) == Kind::tensor
                   ? Kind::tensors
                   : Kind::other;
    case TypeKind::TensorType:
        return Kind::tensor;
    case TypeKind::IntType:
    case TypeKind::SymIntType:
        return Kind::integer;
    case TypeKind::ScalarTypeType:
        return Kind::dtype;
    case TypeKind::LayoutType:
        return Kind::layout;
    case TypeKind::MemoryFormatType:
        return Kind::memory_format;
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
        return Kind::real;
    case TypeKind::BoolType:
    case TypeKind::SymBoolType:
        return Kind::boolean;
    case TypeKind::NumberType:
        return Kind::scalar;
    case TypeKind::DeviceObjType:
        return Kind::device;
    case TypeKind::GeneratorType:
        return Kind::generator;
    case TypeKind::StorageType:
        return Kind::storage;
    default:
        return Kind::other;
    }
}

bool is_list(const c10::TypePtr &type)
{
    if (auto optional = type->cast<c10::OptionalType>())
        return is_list(optional->getElementType());
    return type->kind() == c10::TypeKind::ListType;
}

bool has_tag(const c10::OperatorHandle &handle, at::Tag tag)
{
    for (at::Tag t : handle.getTags())
        if (t == tag)
            return true;
    return false;
}

bool begins_with(const std::string &text, const char *begin)
{
    return text.rfind(begin, 0) == 0;
}

/* Which argument a return is: that with the same letter in the schema, written. */
int32_t argument_of(const c10::FunctionSchema &schema, const c10::Argument &result)
{
    const c10::AliasInfo *alias = result.alias_info();
    if (!alias || !alias->isWrite())
        return -1;
    for (size_t i = 0; i < schema.arguments().size(); i++) {
        const c10::AliasInfo *other = schema.arguments()[i].alias_info();
        if (other && other->isWrite() && other->beforeSets() == alias->beforeSets())
            return (int32_t)i;
    }
    return -1;
}

void read_returns(Op &op)
{
    const c10::FunctionSchema &schema = op.handle.schema();
    for (const c10::Argument &result : schema.returns()) {
        int32_t argument = argument_of(schema, result);
        if (argument >= 0)
            op.arguments[(size_t)argument].written = (int32_t)op.aliases.size();
        op.aliases.push_back(argument);
        op.is_all_alias &= argument >= 0;
        op.has_list |= is_list(result.type());
    }
}

/* Statistics that training writes, which not every schema says: the first of two, and the argument
 * that says whether it trains. */
struct Statistics {
    const char *name;
    size_t first;
    int32_t is_training;
};
constexpr Statistics statistics[] = {{"aten::native_batch_norm", 3, 5},
                                     {"aten::_native_batch_norm_legit", 3, 5},
                                     {"aten::batch_norm_update_stats", 1, -1}};

void find_unsaid(Op &op)
{
    const auto &arguments = op.handle.schema().arguments();
    for (size_t i = 0; i < arguments.size(); i++) {
        const c10::AliasInfo *alias = arguments[i].alias_info();
        op.arguments[i].is_unsaid = alias && alias->isWrite() && op.arguments[i].written < 0;
    }
    for (const Statistics &s : statistics)
        if (op.name == s.name) {
            op.arguments[s.first].is_unsaid = op.arguments[s.first + 1].is_unsaid = true;
            op.writes_if = s.is_training;
        }
    for (const Argument &argument : op.arguments)
        op.writes_unsaid |= argument.is_unsaid;
}

std::unordered_map<std::string, Op *> &table()
{
    static auto *ops = new std::unordered_map<std::string, Op *>;
    return *ops;
}

std::vector<Op *> &list()
{
    static auto *ops = new std::vector<Op *>;
    return *ops;
}

} // namespace

Op *make_op(const c10::OperatorHandle &handle)
{
    const c10::OperatorName &name = handle.operator_name();
    std::string full = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
    auto known = table().find(full);
    if (known != table().end())
        return known->second;
    Op *op = new Op(handle);
    op->name = full;
    for (const c10::Argument &argument : handle.schema().arguments()) {
        op->arguments.push_back({kind_of(argument.real_type()), is_list(argument.real_type()), -1});
        op->is_out |=
            argument.kwarg_only() && argument.alias_info() && argument.alias_info()->isWrite();
    }
    read_returns(*op);
    find_unsaid(*op);
    op->is_dynamic = has_tag(handle, at::Tag::dynamic_output_shape) ||
                     has_tag(handle, at::Tag::data_dependent_output) ||
                     name.name == "aten::_unique"; /* which has no tag */
    op->is_index = name.name == "aten::index";
    op->takes_cpu = begins_with(name.name, "aten::index") ||
                    begins_with(name.name, "aten::_index_put_impl") ||
                    begins_with(name.name, "aten::_unsafe_index");
    op->draws = has_tag(handle, at::Tag::nondeterministic_seeded);
    op->makes_state = full == "aten::zeros_like";
    op->reads_at_rest = full.find("_like") != std::string::npos ||
                        begins_with(full, "aten::clone") || begins_with(full, "aten::copy");
    op->writes_list = begins_with(full, "aten::_foreach") && handle.schema().returns().empty() &&
                      handle.schema().arguments()[0].alias_info() != nullptr;
    op->is_pointwise = has_tag(handle, at::Tag::pointwise);
    op->shapes_by_value =
        begins_with(name.name, "aten::arange") || begins_with(name.name, "aten::range") ||
        begins_with(name.name, "aten::linspace") || begins_with(name.name, "aten::logspace");
    table().emplace(full, op);
    list().push_back(op);
    return op;
}

void Op::find_one_by_one()
{
    if (begins_with(name, "aten::_foreach") &&
        handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd))
        one_by_one = handle.getComputedKernelForDispatchKey(c10::DispatchKey::CPU);
}

Op *find_op(const char *name, const char *overload)
{
    return make_op(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

const std::vector<Op *> &all_ops()
{
    return list();
}

} // namespace dt_pu
