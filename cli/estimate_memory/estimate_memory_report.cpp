// SPDX-License-Identifier: Apache-2.0
#include "cli/estimate_memory/estimate_memory_report.h"

#include <cmath>

#include <fmt/format.h>

namespace lockstep::cli {
namespace {

using Json = nlohmann::json;

constexpr const char* kNotCounted =
    "Not included: activations, communication buffers, data, libraries, the driver.";

std::string memory_text(double bytes) {
  constexpr double kUnit = 1024;
  if (bytes < kUnit) {
    return fmt::format("{:.0f} B", std::ceil(bytes));
  }
  double amount = bytes;
  const char* unit = "";
  for (const char* name : {"KiB", "MiB", "GiB", "TiB", "PiB"}) {
    if (amount >= kUnit) {
      amount /= kUnit;
      unit = name;
    }
  }
  return fmt::format("{:.2f} {}", amount, unit);
}

std::string memory_text(int64_t bytes) {
  return memory_text(static_cast<double>(bytes));
}

int64_t ceil_bytes(double bytes) {
  return static_cast<int64_t>(std::ceil(bytes));
}

/// The ranks and hosts of one table, and the training state.
struct Layout {
  TrainingState state;
  std::optional<int64_t> largest_layer_parameters;
  int64_t ranks = 1;
  int64_t replicas = 1;  ///< The ranks that hold equal parts of the model, and shard them.
  int64_t hosts = 1;
  bool as_deepspeed = false;  ///< DeepSpeed's formulas apply to this request.
};

const char* name_of(Offload offload) {
  switch (offload) {
    case Offload::kNone:
      return "-";
    case Offload::kOptimizer:
      return "optimizer";
    default:
      return "optimizer, parameters";
  }
}

/// DeepSpeed's estimate; in stage 3 with and without zero.Init.
struct DeepSpeedRow {
  ZeroEstimate estimate;
  std::optional<int64_t> host_without_zero_init;
};

std::optional<DeepSpeedRow> deepspeed_row(const Layout& layout, int stage, Offload offload) {
  if (!layout.as_deepspeed || stage < 2 || (stage == 3 && !layout.largest_layer_parameters)) {
    return std::nullopt;
  }
  const DeepSpeedSetup setup{
      .parameters = layout.state.parameters,
      .largest_layer_parameters = layout.largest_layer_parameters.value_or(0),
      .ranks_per_host = layout.ranks / layout.hosts,
      .hosts = layout.hosts};
  if (stage == 2) {
    return DeepSpeedRow{deepspeed_zero2(setup, offload != Offload::kNone), std::nullopt};
  }
  return DeepSpeedRow{
      deepspeed_zero3(setup, offload, true), deepspeed_zero3(setup, offload, false).host};
}

void add_zero_row(
    const Layout& layout,
    int stage,
    Offload offload,
    std::vector<std::vector<std::string>>& rows,
    Json& json) {
  const int64_t ranks_per_host = layout.ranks / layout.hosts;
  const auto host_text = [&](const ZeroEstimate& of) {
    return of.host == 0 ? "-" : memory_text(of.host * ranks_per_host);
  };
  const ZeroEstimate own = estimate_lockstep(layout.state, stage, offload, layout.replicas);
  const ZeroEstimate papers = estimate_zero(layout.state, stage, offload, layout.replicas);
  const std::optional<DeepSpeedRow> theirs = deepspeed_row(layout, stage, offload);
  rows.push_back(
      {std::to_string(stage),
       name_of(offload),
       memory_text(own.device),
       host_text(own),
       memory_text(papers.device),
       host_text(papers),
       theirs ? memory_text(theirs->estimate.device) : "-",
       theirs ? memory_text(theirs->estimate.host) : "-"});
  Json row = {
      {"ranks", layout.ranks},
      {"replicas", layout.replicas},
      {"hosts", layout.hosts},
      {"stage", stage},
      {"offload_optimizer", offload != Offload::kNone},
      {"offload_parameters", offload == Offload::kOptimizerAndParameters},
      {"lockstep", {{"device_bytes_per_rank", own.device}, {"host_bytes_per_rank", own.host}}},
      {"device_bytes_per_rank", papers.device},
      {"host_bytes_per_rank", papers.host},
      {"deepspeed", nullptr}};
  if (theirs) {
    row["deepspeed"] = {
        {"device_bytes_per_rank", theirs->estimate.device},
        {"host_bytes_per_host", theirs->estimate.host}};
    if (theirs->host_without_zero_init) {
      row["deepspeed"]["host_bytes_per_host_without_zero_init"] = *theirs->host_without_zero_init;
    }
  }
  json.push_back(std::move(row));
}

void add_zero_table(const Layout& layout, const std::string& title, Report& report) {
  std::vector<std::vector<std::string>> rows = {
      {"STAGE",
       "OFFLOADED",
       "DEVICE (LOCKSTEP)",
       "HOST (LOCKSTEP)",
       "DEVICE (PAPERS)",
       "HOST (PAPERS)",
       "DEVICE (DEEPSPEED)",
       "HOST (DEEPSPEED)"}};
  for (int stage = 0; stage <= 3; ++stage) {
    for (const Offload offload :
         {Offload::kNone, Offload::kOptimizer, Offload::kOptimizerAndParameters}) {
      if ((stage > 0 || offload == Offload::kNone) &&
          (stage == 3 || offload != Offload::kOptimizerAndParameters)) {
        add_zero_row(layout, stage, offload, rows, report.json["zero"]);
      }
    }
  }
  report.text +=
      "\n" + title + "\n" + render_table(rows, {false, false, true, true, true, true, true, true});
}

/// Adds the table of `accelerate estimate-memory`.
void add_dtypes(
    const EstimateRequest& request, const std::optional<double>& layer_bytes, Report& report) {
  const double state_numbers =
      static_cast<double>(request.optimizer_numbers) / static_cast<double>(request.size.parameters);
  std::vector<std::vector<std::string>> rows = {
      {"DTYPE", "LARGEST LAYER", "TOTAL", "TRAINING WITH " + request.optimizer}};
  report.json["dtypes"] = Json::array();
  for (const std::string& dtype : request.dtypes) {
    const DtypeEstimate estimate =
        estimate_dtype(dtype, request.size.float32_bytes, layer_bytes.value_or(0), state_numbers);
    rows.push_back(
        {dtype,
         layer_bytes ? memory_text(estimate.largest_layer) : "-",
         memory_text(estimate.total),
         estimate.training ? memory_text(estimate.training->most()) : "-"});
    Json row = {
        {"dtype", dtype},
        {"largest_layer_bytes", nullptr},
        {"total_bytes", ceil_bytes(estimate.total)},
        {"training", nullptr}};
    if (layer_bytes) {
      row["largest_layer_bytes"] = ceil_bytes(estimate.largest_layer);
    }
    if (const auto& training = estimate.training) {
      row["training"] = {
          {"model_bytes", ceil_bytes(training->model)},
          {"gradients_bytes", ceil_bytes(training->gradients)},
          {"optimizer_bytes", ceil_bytes(training->optimizer)},
          {"step_bytes", ceil_bytes(training->step)},
          {"most_bytes", ceil_bytes(training->most())}};
    }
    report.json["dtypes"].push_back(std::move(row));
  }
  report.text += "\n" + render_table(rows, {false, true, true, true});
}

/// Adds the description of the model.
void add_model(const EstimateRequest& request, Report& report) {
  const ModelSize& size = request.size;
  report.text = fmt::format(
      "{}: {} parameters{}\n",
      request.path.empty() ? "model" : printable(request.path),
      with_commas(size.parameters),
      size.buffers == 0 ? "" : fmt::format(", {} numbers in buffers", with_commas(size.buffers)));
  report.json = {
      {"path", request.path.empty() ? Json() : Json(request.path)},
      {"parameters", size.parameters},
      {"buffers", size.buffers},
      {"largest_layer", nullptr},
      {"optimizer", request.optimizer},
      {"mixed_precision", request.mixed_precision},
      {"zero", Json::array()},
      {"not_counted", kNotCounted}};
  if (const auto& layers = size.layers) {
    report.text += fmt::format(
        "  largest layer {}{}\n",
        printable(layers->largest.front()),
        layers->largest.size() == 1
            ? ""
            : fmt::format(" and {} of equal size", layers->largest.size() - 1));
    report.json["largest_layer"] = {
        {"names", layers->largest}, {"own_parameters", layers->largest_own_parameters}};
  }
}

/// Returns the size of the largest layer in float32; nothing if it is unknown.
std::optional<double> largest_layer_bytes(const EstimateRequest& request) {
  if (request.size.layers) {
    return request.size.layers->largest_bytes;
  }
  if (request.largest_layer_parameters) {
    return 4 * static_cast<double>(*request.largest_layer_parameters);
  }
  return std::nullopt;
}

/// Returns numbers divided equally among the pp and tp ranks of one model, rounded up.
int64_t part_of(int64_t numbers, const MeshShape& mesh) {
  const int64_t parts = int64_t{mesh.pp} * mesh.tp;
  return (numbers + parts - 1) / parts;
}

/// Returns the layout of a number of ranks: each has the part of a model that the mesh gives it.
Layout layout_of(const EstimateRequest& request, int64_t ranks) {
  const MeshShape mesh = resolve_mesh(request.mesh, static_cast<int>(ranks), /*shards=*/true);
  const bool mixed = request.mixed_precision != "no";
  const bool is_adam = request.optimizer == "adam" || request.optimizer == "adamw";
  return {
      .state =
          {.parameters = part_of(request.size.parameters, mesh),
           .optimizer_numbers = part_of(request.optimizer_numbers, mesh),
           .mixed_precision = mixed},
      .largest_layer_parameters = request.largest_layer_parameters,
      .ranks = ranks,
      .replicas = mesh.replicas(),
      .hosts = request.hosts,
      // DeepSpeed's estimates know no mesh.
      .as_deepspeed = mixed && is_adam && mesh.is_data_parallel()};
}

std::string zero_title(const EstimateRequest& request, int64_t ranks) {
  const std::string mesh = mesh_text(request.mesh);
  return fmt::format(
      "ZeRO with {} on {}{}, {} with {}",
      counted(static_cast<size_t>(ranks), "rank"),
      counted(static_cast<size_t>(request.hosts), "host"),
      mesh.empty() ? "" : ", mesh " + mesh,
      request.mixed_precision == "no" ? "float32" : request.mixed_precision,
      request.optimizer);
}

}  // namespace

Report estimate_report(const EstimateRequest& request) {
  Report report;
  add_model(request, report);
  add_dtypes(request, largest_layer_bytes(request), report);
  for (const int64_t ranks : request.ranks) {
    add_zero_table(layout_of(request, ranks), zero_title(request, ranks), report);
  }
  report.text += '\n';
  if (const auto& layer = request.largest_layer_parameters) {
    report.text += fmt::format(
        "Stage 3 also gathers one layer at a time: {}. The columns DEEPSPEED include it.\n",
        memory_text(4 * *layer));
  }
  report.text +=
      "DEVICE is the memory of each rank's device, HOST the main memory of each host. LOCKSTEP is "
      "for a float32 model: no\n16-bit copy, no master copy, no gradients on the host. PAPERS are "
      "those of ZeRO and ZeRO-Offload.\n";
  if (!mesh_text(request.mesh).empty()) {
    report.text +=
        "The ranks of pp and tp hold equal parts of the model; the others of the mesh share each "
        "part in ZeRO.\n";
  }
  report.text += std::string(kNotCounted) + "\n";
  return report;
}

}  // namespace lockstep::cli
