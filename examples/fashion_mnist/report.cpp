// SPDX-License-Identifier: Apache-2.0
#include "examples/fashion_mnist/report.h"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "examples/common/png.h"
#include "examples/common/text.h"
#include "lockstep/accelerator/accelerator.h"
#include "lockstep/base/error.h"

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

// The layout of the picture, in pixels.
constexpr int kScale = 3;  // Of a test picture's pixels.
constexpr int kImage = 28 * kScale;
constexpr int kCell = 132;  // Width of a column: "ankle boot" fits.
constexpr int kRow = kImage + 60;
constexpr int kMargin = 150;  // Left of the columns, for the names of the rows.
constexpr int kTitle = 92;
constexpr int kColumns = 10;
constexpr uint8_t kBackground = 24;
constexpr Colour kWhite{240, 240, 240};
constexpr Colour kGrey{150, 150, 150};
constexpr Colour kOrange{255, 176, 96};

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

/// Draws an image of 28 x 28 values into the middle of a column.
void draw_sample(Picture& picture, int left, int top, const at::Tensor& image) {
  const at::Tensor grey =
      ((image - image.min()) / (image.max() - image.min()) * 255).to(at::kInt).contiguous();
  const int* const values = grey.const_data_ptr<int>();
  for (int i = 0; i < 28 * 28; ++i) {
    const auto value = static_cast<uint8_t>(values[i]);
    const int x = left + (kCell - kImage) / 2 + i % 28 * kScale;
    picture.fill(x, top + i / 28 * kScale, kScale, kScale, value, value, value);
  }
}

/// Draws a text into the middle of a column.
void draw_centred(Picture& picture, int left, int top, const std::string& text, Colour colour) {
  constexpr int kTextScale = 2;
  const int x = left + (kCell - text_width(text, kTextScale)) / 2;
  draw_text(picture, x, top, text, kTextScale, colour);
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
      "  {}/mistakes.png    wrongly classified pictures by class, and what they were taken for\n"
      "  {}/logs/metrics.jsonl    all logged numbers, one JSON object for each line\n"
      "  {}    the curves: tensorboard --logdir {}\n"
      "  {}/logs/steps_<rank>.jsonl    the times of all steps\n"
      "  {}/checkpoints    weights (model.safetensors) and training state: continue with --resume "
      "--epochs {}\n"
      "\n"
      "Next      lockstep report {}    writes a page with curves, times and memory of this run",
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
      summary.epochs + 1,
      output);
}

void log_evaluation(
    lockstep::Accelerator& accelerator,
    const Evaluation& result,
    const lockstep::data::IdxImages& test_set) {
  if (!accelerator.is_main_process()) {
    return;
  }
  constexpr int64_t kPictures = 8;
  const auto [surest, answers] = result.probabilities.max(1);
  const at::Tensor order =
      (surest * (answers != result.targets)).argsort(/*dim=*/0, /*descending=*/true);
  std::array<int64_t, kPictures> samples{};
  for (int64_t i = 0; i < kPictures; ++i) {
    samples.at(static_cast<size_t>(i)) = order[i].item<int64_t>();
  }
  const at::Tensor pictures = test_set.get_batch(samples).data;
  accelerator.log({{"test/accuracy", result.accuracy()}, {"test/loss", result.loss()}});
  accelerator.log_histograms({{"test/confidence", surest}});
  accelerator.log_images(
      {{"test/mistakes", (pictures - pictures.min()) / (pictures.max() - pictures.min())}});
  accelerator.log_text({{"test/weakest", weakest_classes(result, 3)}});
}

void write_mistakes(
    const std::filesystem::path& path,
    const Evaluation& result,
    const lockstep::data::IdxImages& test_set) {
  const auto [surest, answers] = result.probabilities.max(1);
  const at::Tensor mistaken = answers != result.targets;
  Picture picture(kMargin + kColumns * kCell + 12, kTitle + 10 * kRow, kBackground);
  const int64_t mistakes = mistaken.sum().item<int64_t>();
  draw_text(picture, 12, 14, "Mistakes on Fashion-MNIST", 3, kWhite);
  draw_text(
      picture,
      12,
      50,
      fmt::format(
          "{} of {} test pictures. Row: the true class. Below each picture: what it was taken for, "
          "and how surely",
          grouped(mistakes),
          grouped(mistaken.numel())),
      2,
      kGrey);
  for (int target = 0; target < 10; ++target) {
    const at::Tensor wrong = mistaken.logical_and(result.targets == target);
    const at::Tensor order = (surest * wrong).argsort(/*dim=*/0, /*descending=*/true);
    const auto count = wrong.sum().item<int64_t>();
    const int top = kTitle + target * kRow;
    draw_text(picture, 12, top + 30, kClasses.at(target), 2, kWhite);
    draw_text(picture, 12, top + 54, fmt::format("{} wrong", count), 2, kGrey);
    for (int column = 0; column < std::min<int64_t>(count, kColumns); ++column) {
      const auto sample = order[column].item<int64_t>();
      const int left = kMargin + column * kCell;
      draw_sample(
          picture, left, top, test_set.get_batch(std::array<int64_t, 1>{sample}).data[0][0]);
      const std::string taken_for = kClasses.at(answers[sample].item<int64_t>());
      const std::string sureness = fmt::format("{:.0f} %", 100 * surest[sample].item<double>());
      draw_centred(picture, left, top + kImage + 6, taken_for, kOrange);
      draw_centred(picture, left, top + kImage + 26, sureness, kGrey);
    }
  }
  write_png(path.string(), picture);
}

}  // namespace examples
