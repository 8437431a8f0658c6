// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group.h"

#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/sharded_param.h"

namespace lockstep {
namespace {

using comm::Collective;
using comm::Op;

std::string shape_text(const at::Tensor& tensor) {
  return fmt::format(
      "{}[{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

void check_tensor(Op op, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    throw ConfigError(comm::name_of(op), "the tensor is undefined");
  }
  if (tensor.is_meta()) {
    throw ConfigError(
        comm::name_of(op),
        fmt::format(
            "{} is on meta and has no values; pass one of a real device", shape_text(tensor)));
  }
  if (comm::is_sharded_param(tensor)) {
    throw ConfigError(
        comm::name_of(op),
        fmt::format(
            "{} has its memory here only while operations of torch touch it (ZeRO stage 3, "
            "zero_init), and a transport works on memory; got the parameter itself, expected a "
            "tensor of its own; pass tensor.detach().clone(), and copy_ the result back if it is "
            "to "
            "stay, or give all ranks one's values by Accelerator::with_gathered_parameters",
            shape_text(tensor)));
  }
  if (tensor.layout() != at::kStrided || !tensor.is_contiguous()) {
    throw ConfigError(
        comm::name_of(op),
        fmt::format(
            "the tensor {} is not contiguous in memory; pass tensor.contiguous()",
            shape_text(tensor)));
  }
  if (tensor.is_conj() || tensor.is_neg()) {
    throw ConfigError(
        comm::name_of(op),
        fmt::format(
            "the memory of {} is not its values; pass tensor.resolve_conj().resolve_neg()",
            shape_text(tensor)));
  }
}

void check_reducible(Op op, const at::Tensor& tensor, ReduceOp reduce) {
  check_tensor(op, tensor);
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
      return;
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
      if (reduce == ReduceOp::kAvg) {
        throw ConfigError(
            comm::name_of(op),
            fmt::format(
                "an average of {} would be rounded; reduce a floating point tensor",
                shape_text(tensor)));
      }
      return;
    default:
      throw ConfigError(
          comm::name_of(op),
          fmt::format(
              "cannot reduce {}; expected float32, float64, float16, bfloat16, uint8, int8, int32 "
              "or int64",
              shape_text(tensor)));
  }
}

void check_divisible(Op op, const at::Tensor& tensor, int size) {
  if (tensor.dim() == 0 || tensor.size(0) % size != 0) {
    throw ConfigError(
        comm::name_of(op),
        fmt::format(
            "dimension 0 cannot be cut into {} equal parts; got {}; pad it or choose another size",
            size,
            shape_text(tensor)));
  }
}

void check_rank(Op op, int rank, int size, const char* what) {
  if (rank < 0 || rank >= size) {
    throw ConfigError(
        comm::name_of(op),
        fmt::format("no such {}; got rank {}, expected 0 to {}", what, rank, size - 1));
  }
}

/// Whether `output` is `input` with its first dimension multiplied by `times` and divided by
/// `parts`.
void check_output(Op op, const at::Tensor& output, const at::Tensor& input, int times, int parts) {
  check_tensor(op, output);
  const bool fits = output.dim() == input.dim() && output.scalar_type() == input.scalar_type() &&
                    output.device() == input.device() &&
                    output.size(0) * parts == input.size(0) * times &&
                    output.sizes().slice(1) == input.sizes().slice(1);
  if (!fits) {
    throw ConfigError(
        comm::name_of(op),
        fmt::format(
            "the output does not fit the input; got output {}, input {}, expected {}/{} of its "
            "rows",
            shape_text(output),
            shape_text(input),
            times,
            parts));
  }
}

/// Of the root: `input` must be an output of each rank along dimension 0.
void check_scatter_input(const at::Tensor& output, const at::Tensor& input, int size) {
  check_tensor(Op::kScatter, input);
  check_divisible(Op::kScatter, input, size);
  const bool fits = output.dim() > 0 && input.numel() == output.numel() * size &&
                    input.dim() == output.dim() &&
                    input.sizes().slice(1) == output.sizes().slice(1) &&
                    input.scalar_type() == output.scalar_type();
  if (!fits) {
    throw ConfigError(
        "scatter",
        fmt::format(
            "input must be {} outputs along dimension 0; got input {}, output {}",
            size,
            shape_text(input),
            shape_text(output)));
  }
}

/// `tensor` without its history, which an operation must not keep alive. Most have none, and
/// detach() costs as much as a small operation.
at::Tensor plain(const at::Tensor& tensor) {
  return tensor.requires_grad() ? tensor.detach() : tensor;
}

/// `like` with its first dimension multiplied by `times` and divided by `parts`.
at::Tensor scaled(const at::Tensor& like, int times, int parts) {
  std::vector<int64_t> sizes(like.sizes().begin(), like.sizes().end());
  if (sizes.empty()) {
    sizes.push_back(1);
  }
  sizes[0] = sizes[0] * times / parts;
  return at::empty(sizes, like.options().requires_grad(false));
}

int64_t bytes_needed(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return c10::multiply_integers(sizes) * static_cast<int64_t>(options.dtype().itemsize());
}

/// So many bytes as the tensor they are for.
at::Tensor shaped(
    const at::Tensor& bytes, at::IntArrayRef sizes, const at::TensorOptions& options) {
  return bytes.view(c10::typeMetaToScalarType(options.dtype())).view(sizes);
}

}  // namespace

at::Tensor Pending::wait() {
  return wait(timeout_);
}

at::Tensor Pending::wait(comm::Milliseconds timeout) {
  if (work_) {
    work_->wait(timeout);
    work_.reset();
  }
  return result_;
}

Group::Group() = default;

Group::Group(std::shared_ptr<comm::Transport> transport, comm::Milliseconds timeout)
    : transport_(std::move(transport)), timeout_(timeout) {
  if (timeout_.count() <= 0) {
    throw ConfigError(
        "group", fmt::format("a timeout must be positive; got {} ms", timeout_.count()));
  }
}

int Group::rank() const {
  return transport_ ? transport_->rank() : 0;
}

int Group::size() const {
  return transport_ ? transport_->size() : 1;
}

const char* Group::transport_name() const {
  return transport_ ? transport_->name() : "none";
}

Pending Group::start(Collective collective, at::Tensor result) {
  return {std::move(result), transport_->start(std::move(collective), timeout_), timeout_};
}

void Group::refuse(Op op, const at::Tensor& argument) {
  if (size() == 1) {
    return;
  }
  try {
    start(comm::refusal_of(op, argument), {}).wait();
  } catch (const CommError&) {
    // The others have heard, or are gone; this rank throws its own error.
  }
}

template <typename Check>
void Group::checked(Op op, const at::Tensor& argument, const Check& check) {
  try {
    check();
  } catch (const ConfigError&) {
    refuse(op, argument);
    throw;
  }
}

Pending Group::all_reduce(at::Tensor tensor, ReduceOp op) {
  checked(Op::kAllReduce, tensor, [&] { check_reducible(Op::kAllReduce, tensor, op); });
  if (size() == 1) {
    return Pending(std::move(tensor));
  }
  return start({.op = Op::kAllReduce, .output = plain(tensor), .reduce = op}, tensor);
}

Pending Group::reduce_scatter(const at::Tensor& input, ReduceOp op) {
  checked(Op::kReduceScatter, input, [&] {
    check_reducible(Op::kReduceScatter, input, op);
    check_divisible(Op::kReduceScatter, input, size());
  });
  return size() == 1 ? Pending(input) : reduce_scatter_into(scaled(input, 1, size()), input, op);
}

Pending Group::reduce_scatter_into(at::Tensor output, const at::Tensor& input, ReduceOp op) {
  checked(Op::kReduceScatter, input, [&] {
    check_reducible(Op::kReduceScatter, input, op);
    check_divisible(Op::kReduceScatter, input, size());
    check_output(Op::kReduceScatter, output, input, 1, size());
  });
  if (size() == 1) {
    output.detach().copy_(input);
    return Pending(std::move(output));
  }
  return start(
      {.op = Op::kReduceScatter, .input = plain(input), .output = plain(output), .reduce = op},
      output);
}

Pending Group::all_gather(const at::Tensor& input) {
  checked(Op::kAllGather, input, [&] { check_tensor(Op::kAllGather, input); });
  const at::Tensor rows = input.dim() == 0 ? input.reshape({1}) : input;
  return size() == 1 ? Pending(rows) : all_gather_into(scaled(rows, size(), 1), rows);
}

Pending Group::all_gather_into(at::Tensor output, const at::Tensor& input) {
  at::Tensor rows = input;
  checked(Op::kAllGather, input, [&] {
    check_tensor(Op::kAllGather, input);
    rows = input.dim() == 0 ? input.reshape({1}) : input;
    check_output(Op::kAllGather, output, rows, size(), 1);
  });
  if (size() == 1) {
    output.detach().copy_(rows);
    return Pending(std::move(output));
  }
  return start({.op = Op::kAllGather, .input = plain(rows), .output = plain(output)}, output);
}

Pending Group::all_to_all(const at::Tensor& input) {
  checked(Op::kAllToAll, input, [&] {
    check_tensor(Op::kAllToAll, input);
    check_divisible(Op::kAllToAll, input, size());
  });
  return size() == 1 ? Pending(input) : all_to_all_into(scaled(input, 1, 1), input);
}

Pending Group::all_to_all_into(at::Tensor output, const at::Tensor& input) {
  checked(Op::kAllToAll, input, [&] {
    check_tensor(Op::kAllToAll, input);
    check_divisible(Op::kAllToAll, input, size());
    check_output(Op::kAllToAll, output, input, 1, 1);
  });
  if (size() == 1) {
    output.detach().copy_(input);
    return Pending(std::move(output));
  }
  return start({.op = Op::kAllToAll, .input = plain(input), .output = plain(output)}, output);
}

Pending Group::broadcast(at::Tensor tensor, int root) {
  checked(Op::kBroadcast, tensor, [&] {
    check_tensor(Op::kBroadcast, tensor);
    check_rank(Op::kBroadcast, root, size(), "root");
  });
  if (size() == 1) {
    return Pending(std::move(tensor));
  }
  return start({.op = Op::kBroadcast, .output = plain(tensor), .root = root}, tensor);
}

Pending Group::gather(const at::Tensor& input, int root) {
  checked(Op::kGather, input, [&] {
    check_tensor(Op::kGather, input);
    check_rank(Op::kGather, root, size(), "root");
  });
  const at::Tensor rows = input.dim() == 0 ? input.reshape({1}) : input;
  if (size() == 1) {
    return Pending(rows);
  }
  const at::Tensor output = rank() == root ? scaled(rows, size(), 1) : at::Tensor();
  return start({.op = Op::kGather, .input = plain(rows), .output = output, .root = root}, output);
}

Pending Group::scatter(at::Tensor output, const at::Tensor& input, int root) {
  checked(Op::kScatter, output, [&] {
    check_tensor(Op::kScatter, output);
    check_rank(Op::kScatter, root, size(), "root");
    if (rank() == root) {
      check_scatter_input(output, input, size());
    }
  });
  Collective collective{.op = Op::kScatter, .output = plain(output), .root = root};
  if (rank() == root) {
    collective.input = plain(input);
  }
  if (size() == 1) {
    output.detach().copy_(input);
    return Pending(std::move(output));
  }
  return start(std::move(collective), output);
}

Pending Group::send(const at::Tensor& tensor, int peer) {
  check_tensor(Op::kSend, tensor);
  check_rank(Op::kSend, peer, size(), "peer");
  if (peer == rank()) {
    throw ConfigError("send", "a rank cannot send to itself");
  }
  return start({.op = Op::kSend, .input = plain(tensor), .root = peer}, tensor);
}

Pending Group::recv(const at::Tensor& tensor, int peer) {
  check_tensor(Op::kRecv, tensor);
  check_rank(Op::kRecv, peer, size(), "peer");
  if (peer == rank()) {
    throw ConfigError("recv", "a rank cannot receive from itself");
  }
  return start({.op = Op::kRecv, .output = plain(tensor), .root = peer}, tensor);
}

void Group::barrier() {
  if (size() > 1) {
    start({.op = Op::kBarrier}, {}).wait();
  }
}

void Group::check_alive() const {
  if (transport_) {
    transport_->check_alive(Op::kBarrier);
  }
}

at::Tensor Group::empty(at::IntArrayRef sizes, const at::TensorOptions& options) const {
  if (!transport_ || !options.device().is_cpu()) {
    return at::empty(sizes, options);
  }
  return shaped(transport_->allocate(bytes_needed(sizes, options)), sizes, options);
}

at::Tensor Group::shared_zeros(at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (!transport_) {
    return at::zeros(sizes, options);
  }
  const at::Tensor memory = transport_->allocate_shared(bytes_needed(sizes, options), timeout_);
  return memory.defined() ? shaped(memory, sizes, options) : memory;
}

Group Group::with_timeout(comm::Milliseconds timeout) const {
  Group other = *this;
  other.timeout_ = timeout;
  return other;
}

Group Group::split(int color, int key) {
  if (size() == 1) {
    return *this;
  }
  auto part = transport_->split(color, key, timeout_);
  return part->size() == 1 ? Group() : Group(std::move(part), timeout_);
}

}  // namespace lockstep
