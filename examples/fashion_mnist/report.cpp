// SPDX-License-Identifier: Apache-2.0
#include "examples/fashion_mnist/report.h"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "examples/common/png.h"
#include "lockstep/base/error.h"
#include "lockstep/data/dataset/fashion_mnist.h"

namespace examples {
namespace {

constexpr std::array<const char*, 10> kClasses = {
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot"};

/// Formats 12345678 as "12,345,678".
std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<size_t>(at), ",");
  }
  return text;
}

std::string event_file(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().rfind("events.out.tfevents", 0) == 0) {
      return entry.path().string();
    }
  }
  return (folder / "events.out.tfevents...").string();
}

/// Formats the classes with the lowest accuracy: "shirt 71.3 % (mostly taken for T-shirt), coat
/// ...".
std::string weakest_classes(const Evaluation& result, int count) {
  const at::Tensor answers = result.probabilities.argmax(1);
  std::vector<std::pair<double, int>> by_accuracy;
  for (int c = 0; c < 10; ++c) {
    const at::Tensor of_class = answers.masked_select(result.targets == c);
    by_accuracy.emplace_back((of_class == c).to(at::kDouble).mean().item<double>(), c);
  }
  std::sort(by_accuracy.begin(), by_accuracy.end());
  std::string text;
  for (int i = 0; i < count; ++i) {
    const auto [accuracy, c] = by_accuracy[i];
    const at::Tensor wrong = answers.masked_select((result.targets == c).logical_and(answers != c));
    std::string taken_for;
    if (wrong.numel() > 0) {
      taken_for = fmt::format(
          " (mostly taken for {})",
          kClasses.at(at::bincount(wrong, {}, 10).argmax().item<int64_t>()));
    }
    text += fmt::format(
        "{}{} {:.1f} %{}", i > 0 ? ", " : "", kClasses.at(c), 100 * accuracy, taken_for);
  }
  return text;
}

}  // namespace

double Evaluation::accuracy() const {
  return (probabilities.argmax(1) == targets).to(at::kDouble).mean().item<double>();
}

double Evaluation::loss() const {
  const at::Tensor chosen = probabilities.gather(1, targets.unsqueeze(1));
  return -chosen.clamp_min(1e-30).log().mean().item<double>();
}

std::string summary_text(const Summary& summary, const Evaluation& result) {
  const std::string output = summary.output.string();
  const auto rate =
      summary.seconds > 0 ? static_cast<double>(summary.samples) / summary.seconds : 0.0;
  return fmt::format(
      "\n"
      "Trained   a CNN of {} parameters on Fashion-MNIST: {} updates on {} process{}\n"
      "Speed     {} samples/s ({:.1f} s with evaluation and checkpoints)\n"
      "Accuracy  {:.1f} % of {} test pictures, loss {:.3f}\n"
      "Weakest   {}\n"
      "\n"
      "Files\n"
      "  {}/mistakes.png    wrongly classified pictures, one row for each predicted class\n"
      "  {}/logs/metrics.jsonl    all logged numbers, one JSON object for each line\n"
      "  {}    the curves: tensorboard --logdir {}\n"
      "  {}/logs/steps_<rank>.jsonl    the times of all steps; as a page: lockstep report {}\n"
      "  {}/checkpoints    weights (model.safetensors) and training state: continue with --resume "
      "--epochs {}",
      grouped(summary.parameters),
      grouped(summary.steps),
      summary.processes,
      summary.processes == 1 ? "" : "es",
      grouped(static_cast<int64_t>(rate)),
      summary.seconds,
      100 * result.accuracy(),
      grouped(result.targets.numel()),
      result.loss(),
      weakest_classes(result, 2),
      output,
      output,
      event_file(summary.output / "logs"),
      output,
      output,
      output,
      output,
      summary.epochs + 1);
}

void write_mistakes(
    const std::filesystem::path& path, const Evaluation& result, const std::string& data_root) {
  constexpr int kScale = 2;
  constexpr int kCell = 28 * kScale + 12;
  constexpr int kColumns = 12;
  const auto test =
      lockstep::data::fashion_mnist(lockstep::data::FashionMnistSplit::kTest, data_root);
  const auto [surest, answers] = result.probabilities.max(1);
  const at::Tensor mistaken = answers != result.targets;
  Picture picture(kColumns * kCell, 10 * kCell, 30);
  for (int answer = 0; answer < 10; ++answer) {
    const at::Tensor wrong = mistaken.logical_and(answers == answer);
    const at::Tensor order = (surest * wrong).argsort(/*dim=*/0, /*descending=*/true);
    const int count = static_cast<int>(std::min<int64_t>(wrong.sum().item<int64_t>(), kColumns));
    for (int column = 0; column < count; ++column) {
      const std::array<int64_t, 1> index = {order[column].item<int64_t>()};
      const at::Tensor image = test.get_batch(index).data[0][0];
      const at::Tensor grey =
          ((image - image.min()) / (image.max() - image.min()) * 255).to(at::kInt).contiguous();
      for (int y = 0; y < 28; ++y) {
        for (int x = 0; x < 28; ++x) {
          const auto value = static_cast<uint8_t>(grey.const_data_ptr<int>()[y * 28 + x]);
          picture.fill(
              column * kCell + 6 + x * kScale,
              answer * kCell + 6 + y * kScale,
              kScale,
              kScale,
              value,
              value,
              value);
        }
      }
    }
  }
  write_png(path.string(), picture);
}

}  // namespace examples
