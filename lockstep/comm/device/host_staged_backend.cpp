// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/device/host_staged_backend.h"

#include <utility>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

namespace lockstep::comm {
namespace {

/// Whether what stands in an operation's output before it matters.
bool reads_output(const Collective& c, int rank) {
  return c.op == Op::kAllReduce || (c.op == Op::kBroadcast && c.root == rank);
}

/// Memory of the host for the values of `like`; pinned for CUDA, which copies twice as fast then.
at::Tensor host_memory(const at::Tensor& like) {
  return at::empty(
      like.sizes(), like.options().device(at::kCPU).pinned_memory(like.device().is_cuda()));
}

class StagedWork final : public Work {
 public:
  StagedWork(std::shared_ptr<Work> work, at::Tensor result, at::Tensor output)
      : work_(std::move(work)), result_(std::move(result)), output_(std::move(output)) {}

  bool done() const override { return work_->done(); }
  void wait(Milliseconds timeout) override {
    work_->wait(timeout);
    if (output_.defined()) {
      const c10::AutoGradMode no_grad(false);
      output_.copy_(result_);
      output_.reset();
    }
  }

 private:
  std::shared_ptr<Work> work_;
  at::Tensor result_;  ///< On the host.
  at::Tensor output_;  ///< On the device; undefined if there is none, or it is written.
};

class HostStagedBackend final : public DeviceBackend {
 public:
  explicit HostStagedBackend(std::shared_ptr<Transport> host) : host_(std::move(host)) {}

  const char* name() const override { return "host"; }
  void check_alive(Op /*op*/) const override {}  // The host's transport says so itself.

  std::shared_ptr<Work> start(Collective collective, Milliseconds timeout) override {
    const c10::AutoGradMode no_grad(false);
    const at::Tensor output = collective.output;
    if (collective.input.defined()) {
      collective.input = host_memory(collective.input).copy_(collective.input);
    }
    if (output.defined()) {
      collective.output = host_memory(output);
      if (reads_output(collective, host_->rank())) {
        collective.output.copy_(output);
      }
    }
    const at::Tensor result = collective.output;
    return std::make_shared<StagedWork>(
        host_->start(std::move(collective), timeout), result, output);
  }

 private:
  std::shared_ptr<Transport> host_;
};

}  // namespace

std::unique_ptr<DeviceBackend> staged_link(std::shared_ptr<Transport> host) {
  return std::make_unique<HostStagedBackend>(std::move(host));
}

}  // namespace lockstep::comm
