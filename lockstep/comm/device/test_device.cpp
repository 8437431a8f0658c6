// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/device/test_device.h"

#include <atomic>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "lockstep/comm/device/test_device_graph.h"
#include "lockstep/comm/device/test_device_streams.h"

namespace lockstep {
namespace {

constexpr at::DeviceType kType = at::kPrivateUse1;
constexpr at::DeviceIndex kCount = 2;
thread_local at::DeviceIndex current = 0;
std::atomic<int64_t> bytes_in_use{0};
std::atomic<int64_t> most_bytes{std::numeric_limits<int64_t>::max()};
std::atomic<bool> events_held{false};
std::atomic<int64_t> reads{0};
thread_local bool computing = false;  // Within a kernel: its copies are not the program's.

// --- libtorch's interface for devices

class Memory final : public at::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    const int64_t before = bytes_in_use.fetch_add(static_cast<int64_t>(bytes));
    if (before + static_cast<int64_t>(bytes) > most_bytes) {
      bytes_in_use -= static_cast<int64_t>(bytes);
      TORCH_CHECK_WITH(
          OutOfMemoryError, false, "the test device is full: ", before, " + ", bytes, " bytes");
    }
    auto* const block = static_cast<size_t*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64));
    block[0] = bytes;
    block[1] = kOfNoStream;
    return {block + 8, block, &release, at::Device(kType, current)};
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  static constexpr size_t kOfNoStream = std::numeric_limits<size_t>::max();

  static void release(void* block) {
    if (block != nullptr) {
      bytes_in_use -= static_cast<int64_t>(*static_cast<size_t*>(block));
      std::free(block);
    }
  }
};

void note_read(const char* what) {
  test_graphs::refuse_while_capturing(what);
  ++reads;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  at::DeviceType type() const override { return kType; }
  at::Device exchangeDevice(at::Device device) const override {
    const at::Device before = getDevice();
    current = device.index();
    return before;
  }
  at::Device getDevice() const override { return {kType, current}; }
  void setDevice(at::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(at::Device device) const noexcept override { current = device.index(); }
  at::DeviceIndex deviceCount() const noexcept override { return kCount; }

  c10::Stream getStream(at::Device device) const override { return test_streams::current(device); }
  c10::Stream getDefaultStream(at::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getStreamFromGlobalPool(at::Device device, bool /*high*/) const override {
    return test_streams::from_pool(device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return test_streams::exchange(stream);
  }
#if LOCKSTEP_TEST_GRAPHS
  bool isStreamCapturing(const c10::Stream& /*stream*/) const override {
    return test_graphs::capturing();
  }
#endif
  void* getStreamNativeHandle(const c10::Stream /*stream*/) const override {
    return nullptr;
  }
  void record(
      void** event, const c10::Stream& stream, at::DeviceIndex, c10::EventFlag) const override {
    test_streams::record(event, stream);
  }
  void destroyEvent(void* event, at::DeviceIndex /*index*/) const noexcept override {
    test_streams::destroy(event);
  }
  void block(void* event, const c10::Stream& /*stream*/) const override {
    test_streams::wait_for(event);
  }
  bool queryEvent(void* event) const override {
    return !events_held && test_streams::is_done(event);
  }
  bool queryStream(const c10::Stream& /*stream*/) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    note_read("wait for a stream");
    test_streams::wait_for(stream);
  }
  void synchronizeEvent(void* event) const override {
    note_read("wait for an event");
    test_streams::wait_for(event);
  }
  void synchronizeDevice(at::DeviceIndex /*index*/) const override {
    note_read("wait for it");
  }
  void recordDataPtrOnStream(const at::DataPtr& data, const c10::Stream& stream) const override {
    static_cast<size_t*>(data.get_context())[1] = static_cast<size_t>(stream.id());
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex /*index*/) const override { return true; }
  at::DeviceIndex deviceCount() const override { return kCount; }
  void setCurrentDevice(at::DeviceIndex index) const override { current = index; }
  at::DeviceIndex getCurrentDevice() const override { return current; }
  at::DeviceIndex exchangeDevice(at::DeviceIndex index) const override {
    return std::exchange(current, index);
  }
  at::DeviceIndex maybeExchangeDevice(at::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(at::DeviceIndex /*index*/) const override {
    static const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>();
    return generator;
  }
};

Memory memory;
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// --- tensors of the device

constexpr at::DispatchKeySet kKeys(at::DispatchKey::PrivateUse1);

at::Tensor empty(
    at::IntArrayRef sizes,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> device,
    std::optional<bool> /*pinned*/,
    std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard on(device);
  return at::detail::empty_generic(
      sizes, &memory, kKeys, dtype.value_or(at::get_default_dtype_as_scalartype()), format);
}

at::Tensor empty_strided(
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> device,
    std::optional<bool> /*pinned*/) {
  const c10::OptionalDeviceGuard on(device);
  return at::detail::empty_strided_generic(
      sizes, strides, &memory, kKeys, dtype.value_or(at::get_default_dtype_as_scalartype()));
}

/// Returns a CPU tensor over the same memory, for libtorch's CPU kernels.
at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor
                         : at::from_blob(
                               tensor.mutable_data_ptr(),
                               tensor.sizes(),
                               tensor.strides(),
                               tensor.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool /*non_blocking*/) {
  if (computing) {
    on_host(to).copy_(on_host(self));
  } else if (to.is_cpu()) {
    note_read("copy from it");
    test_streams::wait_for(test_streams::current(self.device()));
    to.copy_(on_host(self));
  } else if (self.is_cpu()) {
    test_graphs::refuse_while_capturing("copy to it from memory that is not pinned");
    // As from pageable memory: the host's may change from now on.
    test_streams::enqueue(test_streams::current(to.device()), [to, values = self.clone()] {
      on_host(to).copy_(values);
    });
  } else {
    test_graphs::run_or_record([to, self] { on_host(to).copy_(on_host(self)); });
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  if (to.sizes() != self.sizes()) {
    to.resize_(self.sizes());
  }
  return copy_from(self, to, false);
}

// NOLINTBEGIN(bugprone-return-const-ref-from-parameter): libtorch's signature.
const at::Tensor& resize_(
    const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  const at::Tensor fresh = at::empty(sizes, self.options(), format);
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(fresh.storage());
  self.unsafeGetTensorImpl()->set_storage_offset(0);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(fresh.sizes(), fresh.strides());
  return self;
}
// NOLINTEND(bugprone-return-const-ref-from-parameter)

at::Scalar item(const at::Tensor& self) {
  note_read("read a number");
  return on_host(self).item();
}

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  test_graphs::run_or_record([self, value] { on_host(self).fill_(value); });
  return self;
}

at::Tensor& zero(at::Tensor& self) {
  test_graphs::run_or_record([self] { on_host(self).zero_(); });
  return self;
}

/// Allows a parameter's memory to move between host and device, as with a GPU.
bool may_change_places(const at::Tensor& self, const at::Tensor& from) {
  return self.layout() == at::kStrided && from.layout() == at::kStrided;
}

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const bool before = std::exchange(computing, true);
  try {
    at::native::cpu_fallback(op, stack);
  } catch (...) {
    computing = before;
    throw;
  }
  computing = before;
}

void compute_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (computing) {
    compute(op, stack);
  } else {
    test_graphs::call(op, *stack, &compute);
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("view.dtype", &at::native::view_dtype);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  library.impl("set_.source_Tensor", &at::native::set_tensor_);
  library.impl("resize_", &resize_);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &item);
  library.impl("fill_.Scalar", &fill);
  library.impl("zero_", &zero);
  library.impl("_has_compatible_shallow_copy_type", &may_change_places);
}

}  // namespace

at::Device test_device(int index) {
  static const bool registered = [] {
    c10::register_privateuse1_backend("test");
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
    test_graphs::register_graphs();
    return true;
  }();
  return {registered ? kType : at::kCPU, static_cast<at::DeviceIndex>(index)};
}

void hold_test_device_events(bool hold) {
  events_held = hold;
}

void hold_test_device_streams(bool hold) {
  test_streams::hold(hold);
}

bool test_device_keeps_for(const at::Tensor& tensor, c10::Stream stream) {
  return static_cast<const size_t*>(tensor.storage().data_ptr().get_context())[1] ==
         static_cast<size_t>(stream.id());
}

int64_t test_device_reads() {
  return reads;
}

void limit_test_device(std::optional<int64_t> bytes) {
  most_bytes = bytes.value_or(std::numeric_limits<int64_t>::max());
}

int64_t test_device_bytes() {
  return bytes_in_use;
}

}  // namespace lockstep
