// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/device/test_device_graph.h"

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#if LOCKSTEP_TEST_GRAPHS
#include <ATen/core/GraphImplInterface.h>
#endif

namespace lockstep::test_graphs {
namespace {

using Works = std::vector<std::function<void()>>;

thread_local Works* recording = nullptr;

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  if (value.isTensor()) {
    return {value.toTensor()};
  }
  return value.isTensorList() ? value.toTensorVector() : std::vector<at::Tensor>{};
}

at::Tensor memory_of(const at::Tensor& tensor) {
  return at::from_blob(
      tensor.mutable_data_ptr(),
      tensor.sizes(),
      tensor.strides(),
      tensor.options().device(at::kCPU));
}

bool has_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_privateuseone();
}

std::vector<c10::IValue> last(const torch::jit::Stack& stack, size_t count) {
  return {stack.end() - static_cast<std::ptrdiff_t>(count), stack.end()};
}

/// Stores the results of an operator where the next operators of the graph read them.
void put(const std::vector<c10::IValue>& results, const std::vector<c10::IValue>& places) {
  for (size_t i = 0; i < places.size(); ++i) {
    const std::vector<at::Tensor> from = tensors_of(results[i]);
    const std::vector<at::Tensor> to = tensors_of(places[i]);
    for (size_t k = 0; k < to.size(); ++k) {
      if (has_memory(to[k]) && from[k].const_data_ptr() != to[k].const_data_ptr()) {
        memory_of(to[k]).copy_(memory_of(from[k]));
      }
    }
  }
}

}  // namespace

bool capturing() {
  return recording != nullptr;
}

void run_or_record(std::function<void()> work) {
  if (recording == nullptr) {
    work();
  } else {
    recording->push_back(std::move(work));
  }
}

void call(
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack,
    void (*compute)(const c10::OperatorHandle& op, torch::jit::Stack* stack)) {
  if (recording == nullptr) {
    compute(op, &stack);
    return;
  }
  const auto& schema = op.schema();
  const std::vector<c10::IValue> arguments = last(stack, schema.arguments().size());
  std::vector<std::pair<at::Tensor, at::Tensor>> before;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) {
      continue;
    }
    for (const at::Tensor& tensor : tensors_of(arguments[i])) {
      if (has_memory(tensor)) {
        before.emplace_back(tensor, memory_of(tensor).clone());
      }
    }
  }
  Works* const kept = std::exchange(recording, nullptr);
  compute(op, &stack);  // For the shapes of the results.
  recording = kept;
  for (const auto& [tensor, values] : before) {
    memory_of(tensor).copy_(values);
  }
  recording->emplace_back([op, compute, arguments, places = last(stack, schema.returns().size())] {
    torch::jit::Stack again(arguments.begin(), arguments.end());
    compute(op, &again);
    put(again, places);
  });
}

void refuse_while_capturing(const char* what) {
  TORCH_CHECK(recording == nullptr, "the test device is capturing a graph, and cannot ", what);
}

#if LOCKSTEP_TEST_GRAPHS

namespace {

class Graph final : public at::GraphImplInterface {
 public:
  void capture_begin(at::MempoolId_t /*pool*/, at::GraphCaptureMode /*mode*/) override {
    refuse_while_capturing("begin another");
    works_.clear();
    recording = &works_;
  }
  void capture_end() override { recording = nullptr; }
  void instantiate() override {}
  void replay() override {
    refuse_while_capturing("replay one");
    const at::AutoDispatchBelowADInplaceOrView no_autograd;  // As when the operators were recorded.
    for (const auto& work : works_) {
      work();
    }
  }
  void reset() override { works_.clear(); }
  at::MempoolId_t pool() const override { return {0, 0}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string& /*path*/) override {}

 private:
  Works works_;
};

}  // namespace

void register_graphs() {
  at::GraphImplRegistry()->Register(
      c10::DeviceTypeName(at::kPrivateUse1, /*lower_case=*/false),
      [](const at::GraphImplArgs& /*args*/) -> std::unique_ptr<at::GraphImplInterface> {
        return std::make_unique<Graph>();
      });
}

#else

void register_graphs() {}

#endif

}  // namespace lockstep::test_graphs
