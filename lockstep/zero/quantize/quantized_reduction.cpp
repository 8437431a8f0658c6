// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/quantize/quantized_reduction.h"

#include <utility>

#include <ATen/ops/empty.h>

#include "lockstep/zero/quantize/quantize.h"

namespace lockstep::zero {

QuantizedReduction::QuantizedReduction(Group within, Group between, const at::Tensor& gradients)
    : within_(std::move(within)),
      between_(std::move(between)),
      part_(gradients.numel() / within_.size() / between_.size()),
      wire_(wire_bytes(part_, Bits::k4)),
      bytes_(gradients.options().dtype(at::kByte)),
      pending_(at::Tensor()) {
  const int locals = within_.size();
  const int hosts = between_.size();
  const at::Tensor sent = at::empty({int64_t{locals} * hosts, wire_}, bytes_);
  for (int local = 0; local < locals; ++local) {
    for (int host = 0; host < hosts; ++host) {
      quantize(
          gradients.narrow(0, part_ * (host * locals + local), part_),
          Bits::k4,
          sent.select(0, int64_t{local} * hosts + host));
    }
  }
  pending_ = within_.all_to_all(sent);
}

bool QuantizedReduction::advance(bool wait) {
  if (advanced_ || (!wait && !pending_.done())) {
    return advanced_;
  }
  const int hosts = between_.size();
  if (hosts > 1) {
    const at::Tensor received = pending_.wait().view({within_.size(), hosts, wire_});
    const at::Tensor mean = at::empty({part_}, bytes_.dtype(at::kFloat));
    const at::Tensor sent = at::empty({hosts, wire_}, bytes_);
    for (int host = 0; host < hosts; ++host) {
      dequantize_mean(received.select(1, host), Bits::k4, mean);
      quantize(mean, Bits::k4, sent.select(0, host));
    }
    pending_ = between_.all_to_all(sent);
  }
  return advanced_ = true;
}

void QuantizedReduction::finish(const at::Tensor& average) {
  advance(/*wait=*/true);
  dequantize_mean(pending_.wait(), Bits::k4, average);
}

}  // namespace lockstep::zero
