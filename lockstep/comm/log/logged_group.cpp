// SPDX-License-Identifier: Apache-2.0
// Implements logged(): adds the operations of a group to a CommsLog.
#include <chrono>
#include <utility>

#include "lockstep/comm/forward_to_group.h"
#include "lockstep/comm/log/comms_log.h"
#include "lockstep/comm/transport/flight.h"

namespace lockstep {
namespace {

using comm::Collective;
using comm::Milliseconds;
using comm::Op;
using Clock = std::chrono::steady_clock;

int64_t full_tensor_bytes(const Collective& collective, int ranks) {
  const auto bytes_of = [](const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  };
  switch (collective.op) {
    case Op::kAllGather:
    case Op::kGather:
      return bytes_of(collective.input) * ranks;
    case Op::kScatter:
      return bytes_of(collective.output) * ranks;
    case Op::kReduceScatter:
    case Op::kAllToAll:
    case Op::kSend:
      return bytes_of(collective.input);
    default:
      return bytes_of(collective.output);
  }
}

/// Measures one operation, until it is added to the log.
class LoggedOperation final : public comm::OperationTimer {
 public:
  LoggedOperation(std::shared_ptr<CommsLog> log, const Collective& collective, int ranks)
      : log_(std::move(log)),
        op_(collective.op),
        text_(
            log_->options().with_shapes ? comm::fingerprint_of(collective, 0).describe()
                                        : comm::name_of(collective.op)),
        bytes_(full_tensor_bytes(collective, ranks)),
        ranks_(ranks) {}

  void begin() override { began_ = Clock::now(); }
  void end(bool succeeded, std::optional<double> measured_ms) override {
    if (succeeded) {
      const double ms = std::chrono::duration<double, std::milli>(Clock::now() - began_).count();
      log_->add(text_, op_, bytes_, ranks_, measured_ms.value_or(ms));
    }
  }

 private:
  std::shared_ptr<CommsLog> log_;
  Op op_;
  std::string text_;
  int64_t bytes_;
  int ranks_;
  Clock::time_point began_ = Clock::now();
};

class LoggedWork final : public comm::Work {
 public:
  /// `timer`: null if the transport calls it. `output`: the destination of a result that the group
  /// has allocated; undefined for none.
  LoggedWork(Pending pending, std::shared_ptr<LoggedOperation> timer, at::Tensor output)
      : pending_(std::move(pending)), timer_(std::move(timer)), output_(std::move(output)) {}

  bool done() const override { return pending_.done(); }
  void wait(Milliseconds timeout) override {
    const at::Tensor result = pending_.wait(timeout);
    if (timer_) {
      std::exchange(timer_, nullptr)->end(true, std::nullopt);
    }
    if (output_.defined()) {
      output_.copy_(result);
      output_.reset();
    }
  }

 private:
  Pending pending_;
  std::shared_ptr<LoggedOperation> timer_;
  at::Tensor output_;
};

class LoggedTransport final : public comm::Transport {
 public:
  LoggedTransport(Group inner, std::shared_ptr<CommsLog> log)
      : inner_(std::move(inner)), log_(std::move(log)) {}

  const char* name() const override { return inner_.transport_name(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  std::shared_ptr<comm::Work> start(Collective collective, Milliseconds timeout) override {
    auto timer = std::make_shared<LoggedOperation>(log_, collective, size());
    const comm::TimedScope timed(timer);
    Pending pending = comm::forward_to_group(collective, inner_.with_timeout(timeout));
    return std::make_shared<LoggedWork>(
        std::move(pending),
        timed.is_taken() ? nullptr : timer,
        collective.op == Op::kGather ? collective.output : at::Tensor());
  }

  void check_alive(Op /*op*/) const override { inner_.check_alive(); }
  at::Tensor allocate(int64_t bytes) override { return inner_.empty({bytes}, at::kByte); }
  at::Tensor allocate_shared(int64_t bytes, Milliseconds timeout) override {
    return inner_.with_timeout(timeout).shared_zeros({bytes}, at::kByte);
  }
  std::shared_ptr<Transport> split(int color, int key, Milliseconds timeout) override {
    return std::make_shared<LoggedTransport>(inner_.with_timeout(timeout).split(color, key), log_);
  }

 private:
  Group inner_;
  std::shared_ptr<CommsLog> log_;
};

}  // namespace

Group logged(const Group& group, std::shared_ptr<CommsLog> log) {
  if (group.size() == 1) {
    return group;
  }
  return Group(std::make_shared<LoggedTransport>(group, std::move(log)), group.timeout());
}

}  // namespace lockstep
