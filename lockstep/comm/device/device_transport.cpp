// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/device/device_transport.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"
#include "lockstep/comm/device/host_staged_backend.h"
#include "lockstep/comm/nccl/nccl_backend.h"
#include "lockstep/comm/plain_values.h"
#include "lockstep/comm/transport/device_backend.h"
#include "lockstep/comm/transport/flight.h"

namespace lockstep::comm {
namespace {

// Of NCCL's groups in the flight record: no split of a group has this number.
constexpr int64_t kNcclSplit = -2;

/// What ranks tell each other before they choose.
struct DeviceFacts {
  int64_t type = 0;
  int64_t has_nccl = 0;
};

std::vector<size_t> ranks_without(const std::vector<int64_t>& all) {
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == 0) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

class DeviceTransport final : public RenewableTransport {
 public:
  DeviceTransport(std::shared_ptr<Transport> host, DeviceCommKind kind, uint64_t group)
      : first_(std::move(host)), host_(first_), kind_(kind), group_(group), name_(host_->name()) {}

  const char* name() const override { return name_.c_str(); }
  int rank() const override { return first_->rank(); }
  int size() const override { return first_->size(); }

  void abandon() override {
    link_.reset();
    host_.reset();
    name_ = first_->name();
  }
  void renew(Milliseconds timeout) override {
    abandon();
    host_ = first_->split(/*color=*/0, /*key=*/rank(), timeout);
  }
  const std::shared_ptr<Transport>& first() const override { return first_; }

  std::shared_ptr<Work> start(Collective collective, Milliseconds timeout) override {
    refuse_if_abandoned(name_of(collective.op));
    const at::Tensor& tensor = collective.output.defined() ? collective.output : collective.input;
    if (!tensor.defined() || tensor.is_cpu()) {
      check_alive(collective.op);
      return host_->start(std::move(collective), timeout);
    }
    if (collective.op == Op::kSend || collective.op == Op::kRecv) {
      return staged_link(host_)->start(std::move(collective), timeout);
    }
    if (!link_) {
      link_ = choose(tensor.device(), timeout);
      name_ = fmt::format("{}, {}", host_->name(), link_->name());
      log_debug(fmt::format(
          "operations on {} go over {}", c10::DeviceTypeName(tensor.device().type()), name_));
    }
    return link_->start(std::move(collective), timeout);
  }

  void check_alive(Op op) const override {
    if (link_) {
      link_->check_alive(op);
    }
  }

  at::Tensor allocate(int64_t bytes) override {
    refuse_if_abandoned("empty");
    return host_->allocate(bytes);
  }

  at::Tensor allocate_shared(int64_t bytes, Milliseconds timeout) override {
    refuse_if_abandoned("shared_zeros");
    return host_->allocate_shared(bytes, timeout);
  }

  std::shared_ptr<Transport> split(int color, int key, Milliseconds timeout) override {
    refuse_if_abandoned("split");
    return with_devices(
        host_->split(color, key, timeout), kind_, flight_group(group_, splits_++, color));
  }

 private:
  void refuse_if_abandoned(const char* operation) const {
    if (!host_) {
      throw CommError(operation, "this rank has left the group, after a failure");
    }
  }

  std::unique_ptr<DeviceBackend> choose(at::Device device, Milliseconds timeout) {
    const FlightRecordingPause parts_of_one;
    std::string no_nccl;
    const NcclApi* const nccl = device.is_cuda() ? NcclApi::find(no_nccl) : nullptr;
    if (!no_nccl.empty() && kind_ != DeviceCommKind::kHost) {
      log_warning(no_nccl, LogAudience::kEveryRank);
    }
    const DeviceFacts mine{
        .type = static_cast<int64_t>(device.type()), .has_nccl = nccl != nullptr ? 1 : 0};
    std::vector<int64_t> has_nccl;
    for (const DeviceFacts& theirs : exchange(*host_, mine, timeout)) {
      if (theirs.type != mine.type) {
        throw CommError(
            "device",
            fmt::format(
                "ranks work on different kinds of devices; got {} here, {} elsewhere; construct "
                "every Accelerator with the same `cpu`",
                c10::DeviceTypeName(device.type()),
                c10::DeviceTypeName(static_cast<c10::DeviceType>(theirs.type))));
      }
      has_nccl.push_back(theirs.has_nccl);
    }
    if (kind_ == DeviceCommKind::kHost || (kind_ == DeviceCommKind::kAuto && !device.is_cuda())) {
      return staged_link(host_);
    }
    std::string why;
    if (const std::vector<size_t> without = ranks_without(has_nccl); !without.empty()) {
      why = device.is_cuda()
                ? fmt::format(
                      "rank{} {} cannot load NCCL 2.14 or later; name a libnccl.so.2 in "
                      "LOCKSTEP_NCCL_LIBRARY",
                      without.size() == 1 ? "" : "s",
                      fmt::join(without, ", "))
                : fmt::format("NCCL works on CUDA devices; got {}", device.str());
    } else if (
        auto link =
            nccl_link(host_, device, *nccl, flight_group(group_, kNcclSplit, 0), timeout, why)) {
      return link;
    }
    if (kind_ == DeviceCommKind::kNccl) {
      throw ConfigError("LOCKSTEP_DEVICE_COMM", "there is no NCCL: " + why);
    }
    if (rank() == 0) {
      log_warning(
          "device tensors are sent through the host's memory, which is slower, instead of "
          "NCCL: " +
          why);
    }
    return staged_link(host_);
  }

  std::shared_ptr<Transport> first_;
  std::shared_ptr<Transport> host_;  ///< first_, or one of its splits; null once abandoned.
  DeviceCommKind kind_;
  uint64_t group_;
  std::string name_;
  std::unique_ptr<DeviceBackend> link_;
  int64_t splits_ = 0;
};

}  // namespace

std::shared_ptr<RenewableTransport> with_devices(
    std::shared_ptr<Transport> host, DeviceCommKind kind, uint64_t group) {
  return std::make_shared<DeviceTransport>(std::move(host), kind, group);
}

}  // namespace lockstep::comm
