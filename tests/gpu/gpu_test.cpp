// SPDX-License-Identifier: Apache-2.0
// Tests that need a GPU: streams, NCCL itself, and a training loop that equals the CPU's. One GPU
// is enough, for NCCL with one rank and for two processes that share it.
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/modules/linear.h>
#include <torch/version.h>

// libtorch 2.13 has device-independent graphs. With an older libtorch for CUDA, compile with
// -DLOCKSTEP_CUDA_GRAPHS, which needs CUDA's headers.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
#define LOCKSTEP_GRAPHS 1
#include <ATen/accelerator/Graph.h>
using Graph = at::accelerator::Graph;
#elif defined(LOCKSTEP_CUDA_GRAPHS)
#define LOCKSTEP_GRAPHS 1
#include <ATen/cuda/CUDAGraph.h>
using Graph = at::cuda::CUDAGraph;
#else
#define LOCKSTEP_GRAPHS 0
#endif

#include "lockstep/base/test_folder.h"
#include "lockstep/comm/nccl/nccl_backend.h"
#include "lockstep/comm/shm/shm_transport.h"
#include "lockstep/lockstep.h"
#include "tests/e2e/harness/lockstep_run.h"
#include "tests/e2e/harness/run_command.h"
#include "tests/nets.h"

namespace lockstep {
namespace {

// `./dev test` sets this variable to keep all other tests on the CPU.
[[maybe_unused]] const int kCleared = ::unsetenv("LOCKSTEP_USE_CPU");

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::accelerator::deviceCount() == 0) {
      GTEST_SKIP() << "needs a CUDA device, and a libtorch built for it";
    }
  }
};

at::Device gpu() {
  return {at::kCUDA, 0};
}

using Net = test::TwoLayerNet;

Net new_net() {
  return Net(test::TwoLayerOptions{.in = 16, .hidden = 64, .out = 1});
}

data::TensorDataset samples() {
  const at::Tensor x = at::sin(at::arange(64 * 16, at::kFloat)).reshape({64, 16});
  return data::TensorDataset(x, x.sum(1, true));
}

/// Returns the weights after about an epoch, on the host.
std::vector<at::Tensor> trained(Accelerator& accelerator) {
  Net net = new_net();
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      optim::AdamW(net->parameters(), {.lr = 0.01}),
      data::Loader(samples(), {.batch_size = 64 / accelerator.num_processes() / 4}));
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const auto& [x, y] : loader) {
      at::Tensor loss;
      {
        auto cast = accelerator.autocast();
        loss = (model->forward(x) - y).square().mean();
      }
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model->parameters(), 1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : model->parameters()) {
    weights.push_back(parameter.detach().cpu());
  }
  return weights;
}

std::vector<at::Tensor> trained_alone(const AcceleratorOptions& options) {
  Accelerator accelerator(options);
  return trained(accelerator);
}

void expect_near(
    const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::allclose(a[i], b[i], tolerance, tolerance))
        << i << ": " << (a[i] - b[i]).abs().max().item<double>();
  }
}

TEST_F(Gpu, ALoopTrainsAsOnTheCpu) {
  // Sums are in another order, and TF32 is off.
  expect_near(trained_alone({}), trained_alone({.cpu = true}), 1e-4);
}

TEST_F(Gpu, ALoopTrainsInBf16AndFp16) {
  for (const Precision precision : {Precision::kBF16, Precision::kFP16}) {
    expect_near(trained_alone({.mixed_precision = precision}), trained_alone({.cpu = true}), 5e-2);
  }
}

TEST_F(Gpu, AnUpdateOnTheHostTrainsAsOneOnTheGpu) {
  const TestFolder folder;
  for (const int stage : {2, 3}) {
    for (const bool in_files : {false, true}) {
      ZeroPlugin plugin{.stage = stage, .bucket_cap_bytes = 2000};
      plugin.offload_optimizer.device = in_files ? OffloadDevice::kNvme : OffloadDevice::kCpu;
      if (stage == 3) {
        plugin.offload_param.device = plugin.offload_optimizer.device;
        plugin.offload_param.max_in_cpu = 0;
      }
      if (in_files) {
        plugin.offload_optimizer.nvme_path = folder.path();
        plugin.offload_param.nvme_path = stage == 3 ? folder.path() : "";
      }
      expect_near(trained_alone({.zero = plugin}), trained_alone({}), 1e-4);
    }
  }
}

TEST_F(Gpu, PassesDoNotTakeMoreMemoryEach) {
  // The allocator reuses memory only on the same stream.
  const auto reserved_after = [](int passes) {
    for (int pass = 0; pass < passes; ++pass) {
      data::Loader loader(
          data::TensorDataset(at::ones({8, 1 << 20}), at::ones({8})),
          {.batch_size = 2, .device = gpu()});
      for (const auto& batch : loader) {
        EXPECT_EQ(batch.data.sum().item<float>(), static_cast<float>(2 << 20));
      }
    }
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return at::accelerator::getDeviceStats(gpu().index()).reserved_bytes[kAll].current;
  };
  const int64_t before = reserved_after(3);
  EXPECT_LE(reserved_after(10), before + (int64_t{32} << 20));
}

TEST_F(Gpu, BatchesAreCopiedAheadOfComputation) {
  data::Loader loader(samples(), {.batch_size = 8, .workers = 2, .device = gpu()});
  const at::Tensor busy = at::eye(2048, at::TensorOptions(gpu()));
  for (int pass = 0; pass < 5; ++pass) {
    int64_t first = 0;
    for (const auto& [x, y] : loader) {
      at::Tensor work = busy;
      for (int i = 0; i < 10; ++i) {
        work = at::matmul(work, busy);  // The stream is behind the host, and behind the copies.
      }
      EXPECT_TRUE(at::equal(x.cpu(), samples().data().slice(0, first, first + 8)));
      EXPECT_TRUE(at::equal(y.cpu(), samples().target().slice(0, first, first + 8)));
      first += 8;
    }
    EXPECT_EQ(first, 64);
  }
}

#if LOCKSTEP_GRAPHS

template <typename Optimizer>
void expect_replays(typename Optimizer::Options options) {
  const auto parameters_on = [](at::Device device) {
    const Net net = new_net();
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& parameter : net->parameters()) {
      parameters.push_back(parameter.detach().to(device).requires_grad_());
      parameters.back().mutable_grad() = at::zeros_like(parameters.back().detach());
    }
    return parameters;
  };
  const auto step = [](const std::vector<at::Tensor>& parameters, int t, const auto& update) {
    for (const at::Tensor& parameter : parameters) {
      parameter.mutable_grad().copy_(
          at::cos(at::arange(parameter.numel(), at::kFloat) + t).reshape(parameter.sizes()));
    }
    update();
  };
  const std::vector<at::Tensor> on_host = parameters_on(at::kCPU);
  const std::vector<at::Tensor> on_gpu = parameters_on(gpu());
  Optimizer host(on_host, options);
  options.capturable = true;
  Optimizer device(on_gpu, options);
  const auto set_rate = [&](int t) {
    for (torch::optim::Optimizer* each :
         std::initializer_list<torch::optim::Optimizer*>{&host, &device}) {
      each->param_groups()[0].options().set_lr(0.01 * (1 + t % 3));
    }
  };
  // A graph is captured on another stream, which does not wait for the default stream's work:
  // zeroed gradients, and state that is allocated early.
  at::accelerator::synchronizeDevice(gpu().index());
  const c10::StreamGuard beside(
      c10::impl::VirtualGuardImpl(at::kCUDA).getStreamFromGlobalPool(gpu()));
  Graph graph;
  for (int t = 0; t < 20; ++t) {
    set_rate(t);
    step(on_host, t, [&] { host.step(); });
    if (t == 3) {
      at::accelerator::synchronizeDevice(gpu().index());
      graph.capture_begin();
      device.step();
      graph.capture_end();
    }
    step(on_gpu, t, [&] { t < 3 ? static_cast<void>(device.step()) : graph.replay(); });
  }
  for (size_t k = 0; k < on_host.size(); ++k) {
    EXPECT_EQ(device.state_of(on_gpu[k]).step, host.state_of(on_host[k]).step);
  }
  std::vector<at::Tensor> got;
  for (const at::Tensor& parameter : on_gpu) {
    got.push_back(parameter.detach().cpu());
  }
  expect_near(got, on_host, 1e-4);
}

TEST_F(Gpu, AGraphReplaysUpdatesAtTheRateThatWasSet) {
  expect_replays<optim::AdamW>({});
  expect_replays<optim::Adam>({.amsgrad = true});
  expect_replays<optim::Adagrad>({});
  expect_replays<optim::RMSprop>({});
  expect_replays<optim::Adadelta>({});
  expect_replays<optim::Adamax>({});
  expect_replays<optim::RAdam>({});
  expect_replays<optim::LAMB>({.weight_decay = 0.1});
}

#endif

TEST_F(Gpu, TwoProcessesMayShareOne) {
  // Collectives, training and a checkpoint on the GPU; see cli/selftest. Ranks are processes, since
  // a process has one thread for backward on each GPU.
  const e2e::Outcome outcome = e2e::run_command(
      {LOCKSTEP_BIN_DIR "/lockstep", "test", "-n", "2"}, {"CUDA_VISIBLE_DEVICES=0"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, ::testing::HasSubstr("ok    device"));
}

TEST_F(Gpu, NcclItselfJoinsAndDoesEveryOperationOnItsStream) {
  std::string why;
  const comm::NcclApi* const nccl = comm::NcclApi::find(why);
  ASSERT_NE(nccl, nullptr) << "libtorch for CUDA brings NCCL along; " << why;
  const auto host = comm::make_shm_thread_transports({.ranks = 1}).front();
  const comm::Milliseconds timeout = std::chrono::seconds(60);
  const auto link = comm::make_nccl_backend(host, gpu(), *nccl, 1, timeout, why);
  ASSERT_TRUE(link) << why;
  const at::Tensor numbers = at::arange(1 << 20, at::kFloat);
  for (int round = 0; round < 20; ++round) {
    // The values are not computed yet when the operation starts, and are read when it is only
    // enqueued.
    const at::Tensor own = numbers.to(gpu(), /*non_blocking=*/true) * 2 + round;
    const auto run = [&](comm::Op op, const at::Tensor& input, const at::Tensor& output) {
      const auto work = link->start({.op = op, .input = input, .output = output}, timeout);
      work->wait(timeout);
      return output + 1;
    };
    const at::Tensor expected = numbers * 2 + round + 1;
    // In place, with one rank, these two change nothing; the test only calls them.
    EXPECT_TRUE(at::equal(run(comm::Op::kAllReduce, {}, own.clone()).cpu(), expected));
    EXPECT_TRUE(at::equal(run(comm::Op::kBroadcast, {}, own.clone()).cpu(), expected));
    for (const comm::Op op :
         {comm::Op::kReduceScatter,
          comm::Op::kAllGather,
          comm::Op::kAllToAll,
          comm::Op::kGather,
          comm::Op::kScatter}) {
      EXPECT_TRUE(at::equal(run(op, own, at::zeros_like(own)).cpu(), expected))
          << comm::name_of(op);
    }
  }
}

TEST_F(Gpu, ACheckpointRestoresItsRandomNumbers) {
  const TestFolder folder;
  Accelerator accelerator({.save_when_preempted = false});
  Net net = new_net();
  auto model = accelerator.prepare(net);
  accelerator.save_state(folder.path() / "saved");
  const at::Tensor drawn = at::rand({8}, accelerator.device());
  const at::Tensor weight = model->last->weight.detach().clone();
  {
    const torch::NoGradGuard no_grad;
    model->last->weight.zero_();
  }
  accelerator.load_state(folder.path() / "saved");
  EXPECT_TRUE(at::equal(model->last->weight, weight));
  EXPECT_TRUE(at::equal(at::rand({8}, accelerator.device()), drawn));
}

}  // namespace
}  // namespace lockstep
