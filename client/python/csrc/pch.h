/* What all files of this folder read: compiled once (mk/python.mk). No file includes it. */
#ifndef DT_PYTHON_PCH_H
#define DT_PYTHON_PCH_H
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/library.h>
#endif
