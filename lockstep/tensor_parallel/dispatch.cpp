// SPDX-License-Identifier: Apache-2.0
// Intercepts torch's operations on weights that the ranks of a tp line divide.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "lockstep/base/callback.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/divided_mark.h"
#include "lockstep/comm/tensor/value_use.h"
#include "lockstep/tensor_parallel/divided_param.h"
#include "lockstep/tensor_parallel/region.h"

namespace lockstep::tensor_parallel {
namespace {

using comm::is_divided;
using comm::kDividedParamKey;
using Known = std::shared_ptr<const DividedParam>;

constexpr int64_t kSequenceDim = -2;  ///< Of activations (..., sequence, features).

/// Removes the mark, so that operations below and those of backward are not intercepted again.
struct WithoutMark : torch::autograd::Function<WithoutMark> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* /*context*/, const at::Tensor& weight) {
    return comm::alias_without_mark(weight);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* /*context*/,
      const torch::autograd::variable_list& gradients) {
    return {gradients[0]};
  }
};

[[noreturn]] void refuse(const std::string& name, const std::string& operation) {
  throw ConfigError(
      "tensor_parallel",
      fmt::format(
          "{} uses {}, of which each rank has a part only; expected that only its Linear or "
          "Embedding module uses it; remove the module from the plan, or compute this without "
          "gradients",
          operation,
          name));
}

/// Returns the description of a divided weight, or of the weight that `weight` is a transpose of.
Known known(const at::Tensor& weight, const char* operation) {
  auto info = std::dynamic_pointer_cast<const DividedParam>(comm::divided_info(weight));
  if (!info || weight.numel() == 0 ||
      c10::multiply_integers(info->layout.own_sizes()) != weight.numel()) {
    refuse(
        info ? "a view of part of " + info->name
             : "a divided weight that was moved, or whose Accelerator has ended",
        operation);
  }
  return info;
}

/// The input of colwise layers that several of them share (q, k and v), so that one operation, and
/// in backward one all_reduce, serves all.
class SharedInput {
 public:
  at::Tensor enter(const at::Tensor& input, const DividedParam& weight) {
    if (!c10::GradMode::is_enabled()) {
      return make(input, weight);
    }
    const auto same_input = input_.lock();
    if (same_input && same_input.get() == input.unsafeGetTensorImpl() &&
        version_ == input._version() && line_ == weight.line) {
      // An input that requires gradients since then needs a graph.
      if (auto entered = entered_.lock();
          entered && at::Tensor(entered).requires_grad() == input.requires_grad()) {
        return at::Tensor(std::move(entered));
      }
    }
    at::Tensor entered = make(input, weight);
    input_ = Weak(input.getIntrusivePtr());
    entered_ = Weak(entered.getIntrusivePtr());
    version_ = input._version();
    line_ = weight.line;
    return entered;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  static at::Tensor make(const at::Tensor& input, const DividedParam& weight) {
    return weight.sequence_parallel ? gather_sequence(input, kSequenceDim, weight.group)
                                    : copy_to_ranks(input, weight.group);
  }

  Weak input_ = Weak(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>());
  Weak entered_ = Weak(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>());
  int64_t version_ = 0;
  const void* line_ = nullptr;
};

/// Adds the ranks' partial results.
at::Tensor leave(const at::Tensor& partial, const DividedParam& weight) {
  return weight.sequence_parallel ? scatter_sum(partial, kSequenceDim, weight.group)
                                  : sum_over_ranks(partial, weight.group);
}

/// Computes `input` times the divided `matrix` (in features, out features), plus `bias`, by
/// `multiply`.
template <typename Multiply>
at::Tensor divided_product(
    const at::Tensor& input,
    const at::Tensor& matrix,
    const at::Tensor& bias,
    const char* operation,
    const Multiply& multiply) {
  const Known weight = known(matrix, operation);
  const c10::impl::ExcludeDispatchKeyGuard own_work(kDividedParamKey);
  const at::Tensor plain = WithoutMark::apply(matrix);
  switch (weight->style) {
    case TensorStyle::kColwise:
    case TensorStyle::kColwiseGather:
    case TensorStyle::kEmbedding: {  // Words are the output features of an output layer.
      thread_local SharedInput shared;
      const at::Tensor own = multiply(shared.enter(input, *weight), plain, bias);
      return weight->style == TensorStyle::kColwise ? own : gather_columns(own, weight->group);
    }
    case TensorStyle::kRowwise:
    case TensorStyle::kRowwiseSplitInput: {
      const at::Tensor own = weight->style == TensorStyle::kRowwise
                                 ? input
                                 : own_part(input, input.dim() - 1, weight->group);
      const at::Tensor sum = leave(multiply(own, plain, at::Tensor()), *weight);
      // In the dtype of the product, which autocast may have chosen.
      return bias.defined() ? at::add(sum, bias.to(sum.scalar_type())) : sum;
    }
    case TensorStyle::kSequence:
    case TensorStyle::kWhole:
    case TensorStyle::kWholeSumGradient:
    case TensorStyle::kOwnRows:
    case TensorStyle::kOwnColumns:
      break;
  }
  refuse(weight->name, operation);
}

/// Throws ConfigError unless only `matrix` is divided, and is the transpose of a Linear's weight.
void expect_linear_operands(
    const at::Tensor& other, const at::Tensor& matrix, const char* operation) {
  if (is_divided(other) || matrix.dim() != 2) {
    const at::Tensor& weight = is_divided(other) ? other : matrix;
    refuse(
        known(weight, operation)->name,
        fmt::format("{} in another place than Linear's", operation));
  }
  const std::vector<int64_t> sizes = known(matrix, operation)->layout.own_sizes();
  if (matrix.size(0) != sizes[1] || matrix.size(1) != sizes[0] ||
      (sizes[0] == sizes[1] && sizes[0] > 1 && matrix.stride(0) != 1)) {
    refuse(known(matrix, operation)->name, fmt::format("{} without a transposition", operation));
  }
}

/// Throws ConfigError for a view of another shape than the weight's, such as its transpose.
void expect_weight(const at::Tensor& weight, const char* operation) {
  const std::vector<int64_t> sizes = known(weight, operation)->layout.own_sizes();
  if (weight.sizes() != at::IntArrayRef(sizes) || (weight.size(1) > 1 && weight.stride(1) != 1)) {
    refuse(known(weight, operation)->name, fmt::format("{} with a view of it", operation));
  }
}

at::Tensor linear(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  at::Tensor result;
  run_callback([&] {
    if (is_divided(input)) {
      refuse(known(input, "linear")->name, "linear, as its input,");
    }
    expect_weight(weight, "linear");
    result = divided_product(
        input,
        weight,
        bias.value_or(at::Tensor()),
        "linear",
        [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
          return at::linear(x, w, b);
        });
  });
  return result;
}

at::Tensor addmm(
    const at::Tensor& self,
    const at::Tensor& left,
    const at::Tensor& right,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  at::Tensor result;
  run_callback([&] {
    expect_linear_operands(left, right, "addmm");
    if (is_divided(self)) {
      refuse(known(self, "addmm")->name, "addmm, as what it adds,");
    }
    result = divided_product(
        left,
        right,
        beta.equal(1) ? self : at::mul(self, beta),
        "addmm",
        [&](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
          return b.defined() ? at::addmm(self, x, w, beta, alpha) : at::mul(at::mm(x, w), alpha);
        });
  });
  return result;
}

at::Tensor matmul(const at::Tensor& left, const at::Tensor& right) {
  at::Tensor result;
  run_callback([&] {
    expect_linear_operands(left, right, "matmul");
    result = divided_product(
        left,
        right,
        at::Tensor(),
        "matmul",
        [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& /*bias*/) {
          return at::matmul(x, w);
        });
  });
  return result;
}

/// Looks up the rank's own words; the others' results are zero.
at::Tensor embedding(
    const at::Tensor& weight,
    const at::Tensor& indices,
    c10::SymInt padding_idx,
    bool scale_grad_by_freq,
    bool sparse) {
  at::Tensor result;
  run_callback([&] {
    expect_weight(weight, "embedding");
    const Known divided = known(weight, "embedding");
    if (divided->style == TensorStyle::kSequence) {
      const c10::impl::ExcludeDispatchKeyGuard own_work(kDividedParamKey);
      result = own_part(
          at::embedding(
              WithoutMark::apply(weight),
              indices,
              padding_idx.expect_int(),
              scale_grad_by_freq,
              sparse),
          kSequenceDim,
          divided->group);
      return;
    }
    // A tied output layer has another style, with the same rows.
    if (divided->layout.dim() != 0 || scale_grad_by_freq || sparse) {
      throw ConfigError(
          "tensor_parallel",
          fmt::format(
              "the embedding {} has the style {}, scale_grad_by_freq {} and sparse {}; expected "
              "the "
              "style embedding, and neither of the two",
              divided->name,
              tensor_style_name(divided->style),
              scale_grad_by_freq,
              sparse));
    }
    const c10::impl::ExcludeDispatchKeyGuard own_work(kDividedParamKey);
    const int64_t rows = weight.size(0);
    const int64_t begin = divided->layout.begin(divided->group.rank());
    const int64_t padding = padding_idx.expect_int();
    const bool has_padding = padding >= begin && padding < begin + rows;
    const at::Tensor own = at::sub(indices, begin);
    const at::Tensor absent = at::logical_or(at::lt(own, 0), at::ge(own, rows));
    const at::Tensor looked_up = at::embedding(
        WithoutMark::apply(weight),
        at::masked_fill(own, absent, 0),
        has_padding ? padding - begin : -1);
    result = leave(at::masked_fill(looked_up, absent.unsqueeze(-1), 0), *divided);
  });
  return result;
}

/// Throws ConfigError for a divided weight, or a list with one, that autograd would record.
void refuse_divided(const c10::IValue& value, const std::string& operation) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (is_divided(tensor) && tensor.requires_grad()) {
      const auto info = std::dynamic_pointer_cast<const DividedParam>(comm::divided_info(tensor));
      refuse(info ? info->name : "a part of a divided weight", operation);
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      refuse_divided(item, operation);
    }
  }
}

/// Handles every other operation.
void other_operation(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  run_callback([&] {
    const c10::FunctionSchema& schema = op.schema();
    if (c10::GradMode::is_enabled() && comm::uses_values(schema)) {
      for (const c10::IValue& value : torch::jit::last(*stack, schema.arguments().size())) {
        refuse_divided(value, schema.name());
      }
    }
    op.redispatchBoxed(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDividedParamKey), stack);
  });
}

}  // namespace

void install_dispatch() {
  // Installing it when the library is loaded would end the program on an error.
  static std::pair<torch::Library*, torch::Library*> const libraries = [] {
    try {
      auto* all =
          new torch::Library(torch::Library::IMPL, "_", kDividedParamKey, __FILE__, __LINE__);
      all->fallback(torch::CppFunction::makeFromBoxedFunction<&other_operation>());
      auto* some =
          new torch::Library(torch::Library::IMPL, "aten", kDividedParamKey, __FILE__, __LINE__);
      some->impl("linear", TORCH_FN(linear));
      some->impl("addmm", TORCH_FN(addmm));
      some->impl("matmul", TORCH_FN(matmul));
      some->impl("mm", TORCH_FN(matmul));
      some->impl("embedding", TORCH_FN(embedding));
      return std::pair(all, some);
    } catch (const c10::Error& error) {
      throw ConfigError(
          "tensor_parallel",
          fmt::format(
              "tensor parallelism needs torch's dispatch key TESTING_ONLY_GenericWrapper, which "
              "other code in this process uses; run without that code: {}",
              error.what_without_backtrace()));
    }
  }();
  static_cast<void>(libraries);
}

}  // namespace lockstep::tensor_parallel
