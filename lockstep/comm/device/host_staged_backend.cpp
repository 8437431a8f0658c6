// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/device/host_staged_backend.h"

#include <utility>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

namespace lockstep::comm {
namespace {

/// Returns whether an operation reads its output tensor.
bool reads_output(const Collective& c, int rank) {
  return c.op == Op::kAllReduce || (c.op == Op::kBroadcast && c.root == rank);
}

/// Allocates host memory for the values of `like`; pinned for CUDA, which then copies twice as
/// fast.
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
  at::Tensor output_;  ///< On the device; undefined if there is none, or after it was written.
};

class HostStagedBackend final : public DeviceBackend {
 public:
  explicit HostStagedBackend(std::shared_ptr<Transport> host) : host_(std::move(host)) {}

  const char* name() const override { return "host"; }
  bool is_on_host_transport() const override { return true; }
  void check_alive(Op /*op*/) const override {}  // The host's transport throws itself.

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

std::unique_ptr<DeviceBackend> make_host_staged_backend(std::shared_ptr<Transport> host) {
  return std::make_unique<HostStagedBackend>(std::move(host));
}

}  // namespace lockstep::comm
