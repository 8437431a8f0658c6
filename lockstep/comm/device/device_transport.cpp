// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/device/device_transport.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"
#include "lockstep/base/text/words.h"
#include "lockstep/comm/device/host_staged_backend.h"
#include "lockstep/comm/nccl/nccl_backend.h"
#include "lockstep/comm/transport/device_backend.h"
#include "lockstep/comm/transport/exchange.h"
#include "lockstep/comm/transport/flight.h"

namespace lockstep::comm {
namespace {

// The split number of NCCL's groups in the flight record; no split of a group has it.
constexpr int64_t kNcclSplit = -2;

/// Holds the facts that ranks exchange before they choose a backend.
struct DeviceFacts {
  int64_t type = 0;
  int64_t has_nccl = 0;
};

class DeviceTransport final : public RenewableTransport {
 public:
  DeviceTransport(std::shared_ptr<Transport> host, DeviceCommKind kind, uint64_t group)
      : first_(std::move(host)), host_(first_), kind_(kind), group_(group), name_(host_->name()) {}

  const char* name() const override { return name_.c_str(); }
  int rank() const override { return first_->rank(); }
  int size() const override { return first_->size(); }

  void abandon() override {
    backend_.reset();
    host_.reset();
    name_ = first_->name();
  }
  void renew(Milliseconds timeout) override {
    abandon();
    host_ = first_->split(/*color=*/0, /*key=*/rank(), timeout);
  }
  const std::shared_ptr<Transport>& first() const override { return first_; }

  std::shared_ptr<Work> start(Collective collective, Milliseconds timeout) override {
    check_connected(name_of(collective.op));
    const at::Tensor& tensor = collective.output.defined() ? collective.output : collective.input;
    if (!tensor.defined() || tensor.is_cpu()) {
      check_alive(collective.op);
      return host_->start(std::move(collective), timeout);
    }
    if (collective.op == Op::kSend || collective.op == Op::kRecv) {
      return make_host_staged_backend(host_)->start(std::move(collective), timeout);
    }
    if (!backend_) {
      backend_ = choose(tensor.device(), timeout);
      name_ = fmt::format("{}, {}", host_->name(), backend_->name());
      log_debug(fmt::format(
          "operations on {} use {}", c10::DeviceTypeName(tensor.device().type()), name_));
    }
    return backend_->start(std::move(collective), timeout);
  }

  bool answers_questions() const override { return !backend_ || backend_->is_on_host_transport(); }

  void check_alive(Op op) const override {
    if (backend_) {
      backend_->check_alive(op);
    }
  }

  at::Tensor allocate(int64_t bytes) override {
    check_connected("empty");
    return host_->allocate(bytes);
  }

  at::Tensor allocate_shared(int64_t bytes, Milliseconds timeout) override {
    check_connected("shared_zeros");
    return host_->allocate_shared(bytes, timeout);
  }

  void set_number(uint64_t number) override { first_->set_number(number); }

  uint64_t number_of(int rank, Milliseconds timeout) override {
    return first_->number_of(rank, timeout);
  }

  NextMessage next_message(int from, int tag) override {
    check_connected("recv");
    return host_->next_message(from, tag);
  }

  std::shared_ptr<Transport> split(int color, int key, Milliseconds timeout) override {
    check_connected("split");
    return with_devices(
        host_->split(color, key, timeout), kind_, flight_group(group_, splits_++, color));
  }

 private:
  void check_connected(const char* operation) const {
    if (!host_) {
      throw CommError(operation, "this rank has left the group after a failure");
    }
  }

  std::unique_ptr<DeviceBackend> choose(at::Device device, Milliseconds timeout) {
    const FlightRecordingPause pause;
    std::string nccl_fault;
    const NcclApi* const nccl = device.is_cuda() ? NcclApi::find(nccl_fault) : nullptr;
    if (!nccl_fault.empty() && kind_ != DeviceCommKind::kHost) {
      log_warning(nccl_fault, LogAudience::kEveryRank);
    }
    const DeviceFacts mine{
        .type = static_cast<int64_t>(device.type()), .has_nccl = nccl != nullptr ? 1 : 0};
    const std::vector<DeviceFacts> by_rank = exchange(*host_, mine, timeout);
    std::vector<int> without_nccl;
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      const DeviceFacts& theirs = by_rank[rank];
      if (theirs.type != mine.type) {
        throw CommError(
            "device",
            fmt::format(
                "the ranks use different kinds of devices; got {} on this rank, {} on another; "
                "construct every Accelerator with the same `cpu`",
                c10::DeviceTypeName(device.type()),
                c10::DeviceTypeName(static_cast<c10::DeviceType>(theirs.type))));
      }
      if (theirs.has_nccl == 0) {
        without_nccl.push_back(static_cast<int>(rank));
      }
    }
    if (kind_ == DeviceCommKind::kHost || (kind_ == DeviceCommKind::kAuto && !device.is_cuda())) {
      return make_host_staged_backend(host_);
    }
    std::string why;
    if (!without_nccl.empty()) {
      why = device.is_cuda()
                ? fmt::format(
                      "{} cannot load NCCL 2.14 or later; set LOCKSTEP_NCCL_LIBRARY to a "
                      "libnccl.so.2",
                      ranks_text(without_nccl))
                : fmt::format("NCCL needs CUDA devices; got {}", device.str());
    } else if (
        auto backend = make_nccl_backend(
            host_, device, *nccl, flight_group(group_, kNcclSplit, 0), timeout, why)) {
      return backend;
    }
    if (kind_ == DeviceCommKind::kNccl) {
      throw ConfigError("LOCKSTEP_DEVICE_COMM", "NCCL is not available: " + why);
    }
    if (rank() == 0) {
      log_warning(
          "NCCL is not available; device tensors are sent through the host's memory, which is "
          "slower: " +
          why);
    }
    return make_host_staged_backend(host_);
  }

  std::shared_ptr<Transport> first_;
  std::shared_ptr<Transport> host_;  ///< first_, or one of its splits; null once abandoned.
  DeviceCommKind kind_;
  uint64_t group_;
  std::string name_;
  std::unique_ptr<DeviceBackend> backend_;
  int64_t splits_ = 0;
};

}  // namespace

std::shared_ptr<RenewableTransport> with_devices(
    std::shared_ptr<Transport> host, DeviceCommKind kind, uint64_t group) {
  return std::make_shared<DeviceTransport>(std::move(host), kind, group);
}

}  // namespace lockstep::comm
