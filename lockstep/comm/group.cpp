// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/call_scope.h"
#include "lockstep/comm/group_checks.h"
#include "lockstep/comm/group_user.h"
#include "lockstep/comm/wait_observer.h"

namespace lockstep {
namespace {

using comm::check_divisible;
using comm::check_output;
using comm::check_rank;
using comm::check_reducible;
using comm::check_scatter_input;
using comm::check_tensor;
using comm::Collective;
using comm::Op;

/// Returns `tensor` without its autograd graph, which an operation must not keep alive. Most
/// tensors have none, and detach() costs as much as a small operation.
at::Tensor plain(const at::Tensor& tensor) {
  return tensor.requires_grad() ? tensor.detach() : tensor;
}

/// Allocates a tensor like `like` with dimension 0 multiplied by `times` and divided by `parts`.
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

/// Returns the same memory as a tensor of these `sizes` and options.
at::Tensor view_as(
    const at::Tensor& bytes, at::IntArrayRef sizes, const at::TensorOptions& options) {
  return bytes.view(c10::typeMetaToScalarType(options.dtype())).view(sizes);
}

/// Checks the arguments of send and recv on `rank` of a group of `size`.
void check_message(Op op, const at::Tensor& tensor, int peer, int rank, int size) {
  check_tensor(op, tensor);
  check_rank(op, peer, size, "peer");
  if (peer == rank) {
    throw ConfigError(comm::name_of(op), "peer is this rank itself; expected another rank");
  }
}

/// Throws unless there is another rank, of which a recv without a sender may get a message.
void check_any_sender(int size) {
  if (size == 1) {
    throw ConfigError(
        comm::name_of(Op::kRecv), "a group of one rank has no sender; expected 2 or more");
  }
}

}  // namespace

at::Tensor Pending::wait() {
  return wait(timeout_);
}

at::Tensor Pending::wait(comm::Milliseconds timeout) {
  if (work_) {
    const comm::GroupUser::WaitScope inside(user_.get(), starter_);
    const comm::WaitScope busy;
    work_->wait(timeout);
    work_.reset();
  }
  return result_;
}

Group::Group() = default;

Group::Group(std::shared_ptr<comm::Transport> transport, comm::Milliseconds timeout)
    : transport_(std::move(transport)),
      user_(std::make_shared<comm::GroupUser>()),
      timeout_(timeout) {
  if (timeout_.count() <= 0) {
    throw ConfigError(
        "group",
        fmt::format("timeout is out of range; got {} ms, expected 1 or more", timeout_.count()));
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
  const comm::GroupUser::StartScope inside(*user_, comm::name_of(collective.op));
  const comm::WaitScope busy;  // Some transports do the work, or a part of it, here.
  collective.call = comm::current_call();
  if (observer_) {
    collective.observer = observer_->observe(collective, size());
  }
  Pending pending(std::move(result));
  pending.work_ = transport_->start(std::move(collective), timeout_);
  pending.timeout_ = timeout_;
  pending.user_ = user_;
  pending.starter_ = comm::GroupUser::this_thread();
  return pending;
}

void Group::refuse(Op op, const at::Tensor& argument) {
  if (size() == 1) {
    return;
  }
  try {
    start(comm::refusal_of(op, argument), {}).wait();
  } catch (const CommError&) {
    // The other ranks have the refusal, or are lost. This rank throws its own error.
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

Pending Group::send(const at::Tensor& tensor, int peer, int tag) {
  check_message(Op::kSend, tensor, peer, rank(), size());
  return start({.op = Op::kSend, .input = plain(tensor), .root = peer, .tag = tag}, tensor);
}

Pending Group::recv(const at::Tensor& tensor, int peer, int tag) {
  check_message(Op::kRecv, tensor, peer, rank(), size());
  return start({.op = Op::kRecv, .output = plain(tensor), .root = peer, .tag = tag}, tensor);
}

std::optional<int> Group::sender_of_next(int tag) {
  check_any_sender(size());
  const comm::GroupUser::StartScope inside(*user_, "recv");
  bool are_lost = true;
  for (int distance = 1; distance < size(); ++distance) {
    const int from = (rank() + distance) % size();
    const comm::NextMessage next = transport_->next_message(from, tag);
    if (next == comm::NextMessage::kArrives) {
      return from;
    }
    are_lost = are_lost && next == comm::NextMessage::kLost;
  }
  if (are_lost) {
    throw CommError("recv", "all other ranks have left the group, and none has sent a message");
  }
  return std::nullopt;
}

std::optional<int> Group::await_sender(int tag, comm::Milliseconds limit) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kLongestSleep{1000};
  check_any_sender(size());
  const comm::GroupUser::StartScope inside(*user_, "recv");
  const comm::WaitScope busy;
  std::chrono::microseconds sleep{20};
  const auto end = Clock::now() + limit;
  while (true) {
    const auto sender = sender_of_next(tag);
    if (sender || Clock::now() >= end) {
      return sender;
    }
    std::this_thread::sleep_for(sleep);
    sleep = std::min(2 * sleep, kLongestSleep);
  }
}

bool Group::answers_questions() const {
  return !transport_ || transport_->answers_questions();
}

bool Group::called_by_all() {
  if (size() == 1) {
    return true;
  }
  const at::Tensor answer = at::ones({1}, at::kByte);
  return start(comm::question_of(answer), answer).wait().item<uint8_t>() != 0;
}

void Group::barrier() {
  start_barrier().wait();
}

Pending Group::start_barrier() {
  return size() == 1 ? Pending({}) : start({.op = Op::kBarrier}, {});
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
  return view_as(transport_->allocate(bytes_needed(sizes, options)), sizes, options);
}

at::Tensor Group::shared_zeros(at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (!transport_) {
    return at::zeros(sizes, options);
  }
  const comm::GroupUser::StartScope inside(*user_, "shared_zeros");
  const at::Tensor memory = transport_->allocate_shared(bytes_needed(sizes, options), timeout_);
  return memory.defined() ? view_as(memory, sizes, options) : memory;
}

Group Group::with_timeout(comm::Milliseconds timeout) const {
  Group other = *this;
  other.timeout_ = timeout;
  return other;
}

Group Group::with_observer(std::shared_ptr<comm::GroupObserver> observer) const {
  Group other = *this;
  other.observer_ = std::move(observer);
  return other;
}

Group Group::with_mesh_dims(const std::string& dims) const {
  auto observer = observer_ ? observer_->of_mesh_dims(dims) : nullptr;
  return observer ? with_observer(std::move(observer)) : *this;
}

void Group::set_number(uint64_t number) {
  if (transport_) {
    transport_->set_number(number);
  }
}

uint64_t Group::number_of(int rank) const {
  return transport_ ? transport_->number_of(rank, timeout_) : 0;
}

Group Group::split(int color, int key) {
  if (size() == 1) {
    return *this;
  }
  const comm::GroupUser::StartScope inside(*user_, "split");
  auto part = transport_->split(color, key, timeout_);
  return part->size() == 1 ? Group() : Group(std::move(part), timeout_).with_observer(observer_);
}

}  // namespace lockstep
