// SPDX-License-Identifier: Apache-2.0
// A dataset, an augmentation, a sampler and a collate function of your own: sequences of different
// lengths, of which the program learns whether their sum is positive.
#include <algorithm>
#include <lockstep/lockstep.h>
#include <numeric>

#include <torch/torch.h>

namespace data = lockstep::data;
namespace optim = lockstep::optim;

namespace {

int64_t length_of(int64_t index) {
  return 5 + index * 7 % 40;
}

struct Sample {
  at::Tensor values;  ///< float [length]
  int64_t label = 0;
  LOCKSTEP_FIELDS(values, label)
};

/// A dataset returns its size and any sample. Worker threads call `get` in parallel, so it is
/// const.
struct Sequences {
  at::Tensor numbers;  ///< float [samples, 45]
  bool augment = false;

  int64_t size() const { return numbers.size(0); }
  Sample get(int64_t index) const {
    at::Tensor values = numbers[index].slice(0, 0, length_of(index));
    const int64_t label = values.sum().item<float>() > 0 ? 1 : 0;
    if (augment) {
      // torch's random numbers: they depend on seed, epoch and sample, not on threads or ranks.
      values = values + torch::randn_like(values) * 0.05;
    }
    return {values, label};
  }
};

/// Makes one batch of samples.
struct Batch {
  data::PaddedBatch sequences;  ///< values and mask [batch, longest]
  at::Tensor label;             ///< int64 [batch]
  LOCKSTEP_FIELDS(sequences, label)
};
Batch collate(const std::vector<Sample>& samples) {
  std::vector<at::Tensor> values;
  std::vector<int64_t> labels;
  for (const Sample& sample : samples) {
    values.push_back(sample.values);
    labels.push_back(sample.label);
  }
  return {data::pad_sequences(values), torch::tensor(labels)};
}

/// Puts sequences of similar length into one batch. The order is a function of the epoch alone.
class ByLength : public data::Sampler {
 public:
  ByLength(int64_t size, int64_t batch_size) : size_(size), batch_size_(batch_size) {}
  int64_t size() const override { return size_; }
  std::vector<int64_t> order(int64_t epoch) const override {
    std::vector<int64_t> indices(static_cast<size_t>(size_));
    std::iota(indices.begin(), indices.end(), 0);
    std::stable_sort(indices.begin(), indices.end(), [](int64_t a, int64_t b) {
      return length_of(a) < length_of(b);
    });
    const data::RandomSampler batches(size_ / batch_size_, /*seed=*/1);
    std::vector<int64_t> order;
    for (const int64_t batch : batches.order(epoch)) {
      const auto first = indices.begin() + batch * batch_size_;
      order.insert(order.end(), first, first + batch_size_);
    }
    return order;
  }

 private:
  int64_t size_, batch_size_;
};

int train() {
  lockstep::Accelerator accelerator;
  data::set_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(2, 16), torch::nn::ReLU(), torch::nn::Linear(16, 2));
  const Sequences sequences{.numbers = torch::randn({4096, 45}), .augment = true};
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      optim::AdamW(net->parameters(), {.lr = 1e-2}),
      data::Loader(
          data::collated(sequences, collate),
          {.batch_size = 32, .workers = 2},
          std::make_shared<ByLength>(sequences.size(), 32)));

  int64_t right = 0, all = 0, padding = 0;
  for (const int64_t epoch : accelerator.epochs(4)) {
    for (auto& batch : loader) {
      const auto& [values, lengths, mask] = batch.sequences;
      const auto features = torch::stack({values.sum(1), lengths.to(torch::kFloat) / 45}, 1);
      const auto scores = model->forward(features);
      accelerator.backward(torch::cross_entropy_loss(scores, batch.label));
      optimizer.step();
      optimizer.zero_grad();
      if (epoch == 3) {
        right += (scores.argmax(1) == batch.label).sum().item<int64_t>();
        all += batch.label.size(0);
        padding += (~mask).sum().item<int64_t>();
      }
    }
  }
  const auto sums = accelerator.reduce(torch::tensor({right, all, padding}));
  accelerator.print(
      "right " + std::to_string(sums[0].item<int64_t>()) + " of " +
      std::to_string(sums[1].item<int64_t>()) + ", padding " +
      std::to_string(sums[2].item<int64_t>()));
  return 0;
}

}  // namespace

int main() {
  return lockstep::run_main(train);
}
