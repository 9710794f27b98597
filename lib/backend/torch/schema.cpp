// Schemas: what each argument of an overload takes, found once and kept.
#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include "backend/torch/torch_internal.h"

namespace dt_torch
{
namespace
{

Kind list_kind(Kind element, bool is_optional)
{
    switch (element) {
    case Kind::tensor:
        return is_optional ? Kind::optional_tensors : Kind::tensors;
    case Kind::integer:
        return Kind::integers;
    case Kind::real:
        return Kind::reals;
    case Kind::boolean:
        return Kind::booleans;
    case Kind::scalar:
        return Kind::scalars;
    case Kind::string:
        return Kind::strings;
    default:
        return Kind::unsupported;
    }
}

/* real_type() keeps ScalarType, Layout, MemoryFormat and SymInt apart; on the stack all are ints.
 */
Kind kind_of(const c10::TypePtr &type, bool *ret_is_optional)
{
    using c10::TypeKind;
    bool ignored = false;
    switch (type->kind()) {
    case TypeKind::OptionalType:
        *ret_is_optional = true;
        return kind_of(type->castRaw<c10::OptionalType>()->getElementType(), &ignored);
    case TypeKind::TensorType:
        return Kind::tensor;
    case TypeKind::IntType:
    case TypeKind::SymIntType:
    case TypeKind::ScalarTypeType:
    case TypeKind::LayoutType:
    case TypeKind::MemoryFormatType:
        return Kind::integer;
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
        return Kind::real;
    case TypeKind::BoolType:
    case TypeKind::SymBoolType:
        return Kind::boolean;
    case TypeKind::NumberType:
        return Kind::scalar;
    case TypeKind::ComplexType:
        return Kind::complex;
    case TypeKind::StringType:
        return Kind::string;
    case TypeKind::DeviceObjType:
        return Kind::device;
    case TypeKind::GeneratorType:
        return Kind::generator;
    case TypeKind::StorageType:
        return Kind::storage;
    case TypeKind::ListType: {
        bool is_optional = false;
        Kind element = kind_of(type->castRaw<c10::ListType>()->getElementType(), &is_optional);
        return list_kind(element, is_optional);
    }
    default:
        return Kind::unsupported;
    }
}

bool has_tag(const c10::OperatorHandle &handle, at::Tag tag)
{
    for (at::Tag t : handle.getTags())
        if (t == tag)
            return true;
    return false;
}

std::unique_ptr<Op> make_op(const c10::OperatorHandle &handle, const char *name)
{
    auto op = std::make_unique<Op>(handle);
    bool has_device = false, has_tensor = false;
    for (const auto &a : handle.schema().arguments()) {
        Argument argument{};
        argument.kind = kind_of(a.real_type(), &argument.is_optional);
        argument.fixed = a.N() ? *a.N() : -1;
        argument.has_default = a.default_value().has_value();
        argument.name = a.name();
        if (argument.has_default)
            argument.fallback = *a.default_value();
        op->is_supported &= argument.kind != Kind::unsupported;
        has_device |= argument.kind == Kind::device;
        has_tensor |= argument.kind == Kind::tensor || argument.kind == Kind::tensors ||
                      argument.kind == Kind::optional_tensors;
        op->arguments.push_back(std::move(argument));
    }
    op->name = name;
    op->typed = typed_call(*op);
    op->is_factory = has_device && !has_tensor;
    op->is_dynamic = has_tag(handle, at::Tag::dynamic_output_shape) ||
                     has_tag(handle, at::Tag::data_dependent_output);
    return op;
}

} // namespace

dt_status_t find_op(Device *device, const char *name, Op **ret_op, dt_error_t *err)
{
    std::lock_guard<std::mutex> hold(device->lock);
    auto known = device->ops.find(name);
    if (known == device->ops.end()) {
        std::string full(name);
        size_t space = full.find("::");
        size_t dot = full.find('.', space == std::string::npos ? 0 : space);
        std::string overload = dot == std::string::npos ? "" : full.substr(dot + 1);
        auto handle = c10::Dispatcher::singleton().findSchema({full.substr(0, dot), overload});
        if (!handle)
            return dt_fail(err, DT_ERR_NOT_FOUND, "torch", DT_BACKEND_NOT_IMPLEMENTED,
                           "there is no operator %s", name);
        known = device->ops.emplace(full, make_op(*handle, name)).first;
    }
    if (!known->second->is_supported)
        return dt_fail(err, DT_ERR_NOT_FOUND, "torch", DT_BACKEND_NOT_IMPLEMENTED,
                       "%s has an argument of a type that is not supported", name);
    *ret_op = known->second.get();
    return DT_OK;
}

} // namespace dt_torch
