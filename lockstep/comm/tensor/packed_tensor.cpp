// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/tensor/packed_tensor.h"

#include <cstring>
#include <string_view>

namespace lockstep {

void Packed<at::Tensor>::put(const at::Tensor& tensor, std::string& bytes) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_quantized()) {
    throw ConfigError(
        "packed tensor",
        "a tensor without values, or a sparse or quantized one, cannot be sent to another process");
  }
  const at::Tensor values = tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  Packed<int8_t>::put(static_cast<int8_t>(values.scalar_type()), bytes);
  Packed<std::vector<int64_t>>::put(values.sizes().vec(), bytes);
  if (values.nbytes() > 0) {
    bytes.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  }
}

at::Tensor Packed<at::Tensor>::take(PackedReader& reader) {
  const auto dtype = static_cast<at::ScalarType>(Packed<int8_t>::take(reader));
  const auto sizes = Packed<std::vector<int64_t>>::take(reader);
  at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(dtype));
  const std::string_view values = reader.take(tensor.nbytes());
  if (!values.empty()) {
    std::memcpy(tensor.mutable_data_ptr(), values.data(), values.size());
  }
  return tensor;
}

}  // namespace lockstep
