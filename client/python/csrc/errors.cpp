// From libdtorch's errors to PyTorch's exceptions, and back to statuses at the C interface.
#include <c10/util/Exception.h>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "internal.h"

/* PyTorch turns exceptions derived from this class into the Python class that they name. Declared
 * here as in torch/csrc/Exceptions.h, which wants Python's headers; the C++ runtime compares types
 * by name. A PyTorch that has no such class makes RuntimeErrors of ours. */
typedef struct _object PyObject;
namespace torch
{
struct PyTorchError : public std::exception {
    explicit PyTorchError(std::string text) : msg(std::move(text))
    {
    }
    virtual PyObject *python_type() = 0;
    const char *what() const noexcept override
    {
        return msg.c_str();
    }
    std::string msg;
};
} // namespace torch

namespace dt_pu
{

/* Visible, as its base is: it crosses libraries. It may cross threads too: what a backward pass
 * throws on a thread of autograd's becomes a Python exception on the one that waits. That asks for
 * the last failure of its own thread. */
struct __attribute__((visibility("default"))) PythonError : public torch::PyTorchError {
    PyObject *type;
    std::shared_ptr<const dt_failure_t> failure; /* may be null */
    PythonError(PyObject *class_of_it, std::string text,
                std::shared_ptr<const dt_failure_t> all_of_it = nullptr)
        : torch::PyTorchError(std::move(text)), type(class_of_it), failure(std::move(all_of_it))
    {
    }
    PyObject *python_type() override
    {
        if (failure)
            keep_failure(*failure);
        return type;
    }
};

namespace
{

std::mutex &class_lock()
{
    static auto *lock = new std::mutex;
    return *lock;
}

std::map<std::string, void *> &classes()
{
    static auto *table = new std::map<std::string, void *>;
    return *table;
}

void *class_of(const std::string &kind_name)
{
    std::lock_guard<std::mutex> hold(class_lock());
    auto known = classes().find(kind_name);
    return known == classes().end() ? nullptr : known->second;
}

thread_local std::unique_ptr<dt_failure_t> kept;
thread_local std::string text_kept;

/* PyTorch's own exception for a kind, where nobody gave classes. */
[[noreturn]] void raise_plain(const std::string &kind_name, const std::string &text)
{
    c10::SourceLocation here = {__func__, __FILE__, (uint32_t)__LINE__};
    if (kind_name == "IndexError")
        throw c10::IndexError(here, text);
    if (kind_name == "ValueError")
        throw c10::ValueError(here, text);
    if (kind_name == "TypeError")
        throw c10::TypeError(here, text);
    if (kind_name == "NotImplementedError")
        throw c10::NotImplementedError(here, text);
    if (kind_name == "LinAlgError")
        throw c10::LinAlgError(here, text);
    if (kind_name == "OutOfMemoryError")
        throw c10::OutOfMemoryError(here, text);
    throw c10::Error(here, text);
}

[[noreturn]] void raise_kind(const std::string &kind_name, const std::string &text,
                             const dt_failure_t &failure)
{
    void *type = class_of(kind_name);
    if (!type)
        type = class_of("");
    if (type)
        throw PythonError(static_cast<PyObject *>(type), text,
                          std::make_shared<const dt_failure_t>(failure));
    raise_plain(kind_name, text);
}

/* PyTorch's words first: programs look for them. What we know follows, a line each. */
std::string describe(const dt_failure_t &failure)
{
    std::string text = failure.text;
    if (!failure.operator_name[0])
        return text;
    text += std::string("\n  operator: ") + failure.operator_name;
    if (failure.inputs[0])
        text += std::string(" (") + failure.inputs + ")";
    if (failure.place[0])
        text += std::string("\n  issued at: ") + failure.place;
    if (failure.node[0])
        text += std::string("\n  on: dtorch:") + std::to_string(failure.vdev) + ", node " +
                failure.node + ", device " + std::to_string(failure.device);
    for (uint32_t i = 0; i < failure.range_count; i++)
        text += std::string(i == 0 ? "\n  in: " : " > ") + failure.range[i];
    return text;
}

} // namespace

void set_exception(const char *kind_name, void *type)
{
    std::lock_guard<std::mutex> hold(class_lock());
    classes()[kind_name] = type;
}

void keep_failure(const dt_failure_t &failure)
{
    if (!kept)
        kept = std::make_unique<dt_failure_t>();
    *kept = failure;
}

bool last_failure(dt_failure_t *ret_failure)
{
    if (kept)
        *ret_failure = *kept;
    return kept != nullptr;
}

void raise(const dt_failure_t &failure)
{
    raise_if_interrupted();
    std::string kind_name = failure.kind[0] ? failure.kind : dt_status_name(failure.error.code);
    keep_failure(failure);
    raise_kind(kind_name, describe(failure), failure);
}

void raise(const dt_error_t &error)
{
    auto failure = std::make_unique<dt_failure_t>();
    memset(failure.get(), 0, sizeof *failure);
    failure->error = error;
    memcpy(failure->text, error.text, sizeof error.text);
    raise(*failure);
}

/* The exception itself is kept for the class "Interrupted", which takes it up; without that class
 * the handler's own class is raised anew. */
void raise_interrupted(void *type, void *value, void *traceback)
{
    void *wanted = type;
    if (python.gil_ensure && python.unref) {
        int state = python.gil_ensure();
        if (value)
            python.unref(
                value); /* `type` stays: classes are seldom freed, and this one is raised */
        if (traceback)
            python.unref(traceback);
        python.gil_release(state);
    }
    throw PythonError(static_cast<PyObject *>(wanted), "");
}

void set_error_text(const std::string &text)
{
    text_kept = text;
}

const char *error_text()
{
    return text_kept.c_str();
}

int guarded(const std::function<int()> &body) noexcept
{
    try {
        return body();
    } catch (const c10::Error &error) {
        text_kept = error.what_without_backtrace();
    } catch (const std::exception &error) {
        text_kept = error.what();
    } catch (...) {
        text_kept = "unknown exception";
    }
    return kept && kept->error.code != DT_OK && text_kept.find(kept->text) != std::string::npos
               ? kept->error.code
               : DT_ERR_INTERNAL;
}

} // namespace dt_pu
