// SPDX-License-Identifier: Apache-2.0
#include "cli/report/page_data.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lockstep/watch/rank_view.h"

namespace lockstep::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;
using watch::Operation;
using watch::RankView;

constexpr size_t kMostOperations = 12;

/// Returns null for a number that JSON does not have.
OrderedJson finite(double value) {
  return std::isfinite(value) ? OrderedJson(value) : OrderedJson();
}

/// Accumulates consecutive records.
struct Bucket {
  int64_t step = 0;
  int64_t steps = 0;
  int64_t samples = 0;
  double seconds = 0;
  PartSeconds parts{};
  double loss = 0;
  int64_t losses = 0;
  std::optional<double> lr;
  int64_t process_bytes = 0;
  int64_t device_bytes = 0;

  void add(const RecordedSteps& record) {
    step = std::max(step, record.step);
    steps += record.steps;
    samples += record.samples;
    seconds += record.seconds;
    for (size_t i = 0; i < parts.size(); ++i) {
      parts.at(i) += record.parts.at(i);
    }
    if (record.loss) {
      loss += *record.loss * static_cast<double>(record.steps);
      losses += record.steps;
    }
    lr = record.lr ? record.lr : lr;
    process_bytes = std::max(process_bytes, record.process_bytes);
    device_bytes = std::max(device_bytes, record.device_bytes);
  }
};

/// Returns the last steps of at most kMostPoints groups of the records.
std::vector<int64_t> ends_of_groups(const std::vector<RecordedSteps>& records) {
  std::vector<int64_t> ends;
  const size_t width = (records.size() + kMostPoints - 1) / kMostPoints;
  for (size_t i = 0; i < records.size(); i += width) {
    ends.push_back(records[std::min(i + width, records.size()) - 1].step);
  }
  return ends;
}

/// Adds up the records of a rank between the `ends`. Records after the last end are left out.
std::vector<Bucket> buckets_of(
    const std::vector<RecordedSteps>& records, const std::vector<int64_t>& ends) {
  std::vector<Bucket> buckets(ends.size());
  for (const RecordedSteps& record : records) {
    const auto end = std::lower_bound(ends.begin(), ends.end(), record.step);
    if (end != ends.end()) {
      buckets[static_cast<size_t>(end - ends.begin())].add(record);
    }
  }
  return buckets;
}

OrderedJson by_part(const PartSeconds& parts) {
  OrderedJson json = OrderedJson::object();
  for (size_t i = 0; i < parts.size(); ++i) {
    json[kReportParts.at(i)] = parts.at(i);
  }
  return json;
}

Bucket total_of(const RankRecords& rank) {
  Bucket total;
  for (const RecordedSteps& record : rank.records) {
    total.add(record);
  }
  return total;
}

double longest_of(const RankRecords& rank) {
  double longest = 0;
  for (const RecordedSteps& record : rank.records) {
    longest = std::max(longest, record.longest);
  }
  return longest;
}

OrderedJson split_of(const RunFiles& run) {
  OrderedJson split = OrderedJson::array();
  for (const RankRecords& rank : run.ranks) {
    const Bucket total = total_of(rank);
    split.push_back(
        {{"rank", rank.rank},
         {"host", rank.header.value("host", "")},
         {"steps", total.steps},
         {"seconds", total.seconds},
         {"longest", longest_of(rank)},
         {"parts", by_part(total.parts)}});
  }
  return split;
}

/// Returns the curves over steps: the mean over ranks of loss and times; the rest of rank 0.
OrderedJson series_of(const RunFiles& run) {
  OrderedJson series = {
      {"step", OrderedJson::array()},
      {"loss", OrderedJson::array()},
      {"lr", OrderedJson::array()},
      {"samples_per_second", OrderedJson::array()},
      {"steps_per_second", OrderedJson::array()},
      {"parts", OrderedJson::object()}};
  for (const char* part : kReportParts) {
    series["parts"][part] = OrderedJson::array();
  }
  if (run.ranks.empty()) {
    return series;
  }
  const auto ends = ends_of_groups(run.ranks.front().records);
  std::vector<std::vector<Bucket>> ranks;
  for (const RankRecords& rank : run.ranks) {
    ranks.push_back(buckets_of(rank.records, ends));
  }
  for (size_t i = 0; i < ends.size(); ++i) {
    Bucket all;
    for (const auto& buckets : ranks) {
      const Bucket& one = buckets[i];
      all.steps += one.steps;
      all.loss += one.loss;
      all.losses += one.losses;
      for (size_t part = 0; part < one.parts.size(); ++part) {
        all.parts.at(part) += one.parts.at(part);
      }
    }
    const Bucket& first = ranks.front()[i];
    const double seconds = std::max(first.seconds, 1e-9);
    const double samples = static_cast<double>(first.samples) *
                           static_cast<double>(run.ranks.front().header.value("world", 1));
    series["step"].push_back(ends[i]);
    series["loss"].push_back(
        all.losses == 0 ? OrderedJson() : finite(all.loss / static_cast<double>(all.losses)));
    series["lr"].push_back(first.lr ? finite(*first.lr) : OrderedJson());
    series["samples_per_second"].push_back(
        first.samples == 0 ? OrderedJson() : finite(samples / seconds));
    series["steps_per_second"].push_back(finite(static_cast<double>(first.steps) / seconds));
    for (size_t part = 0; part < kReportParts.size(); ++part) {
      series["parts"][kReportParts.at(part)].push_back(
          finite(all.parts.at(part) / std::max(1.0, static_cast<double>(all.steps))));
    }
  }
  return series;
}

OrderedJson memory_of(const RunFiles& run) {
  OrderedJson memory = OrderedJson::array();
  for (const RankRecords& rank : run.ranks) {
    OrderedJson json = {
        {"rank", rank.rank},
        {"step", OrderedJson::array()},
        {"process", OrderedJson::array()},
        {"device", OrderedJson::array()}};
    for (const Bucket& bucket : buckets_of(rank.records, ends_of_groups(rank.records))) {
      json["step"].push_back(bucket.step);
      json["process"].push_back(bucket.process_bytes);
      json["device"].push_back(bucket.device_bytes);
    }
    memory.push_back(std::move(json));
  }
  return memory;
}

OrderedJson logged_curves(const RunFiles& run) {
  OrderedJson curves = OrderedJson::array();
  for (const Curve& curve : run.curves) {
    OrderedJson json = {
        {"name", curve.name}, {"step", OrderedJson::array()}, {"value", OrderedJson::array()}};
    const size_t width = (curve.points.size() + kMostPoints - 1) / kMostPoints;
    for (size_t i = 0; i < curve.points.size(); i += width) {
      const size_t end = std::min(i + width, curve.points.size());
      double sum = 0;
      for (size_t k = i; k < end; ++k) {
        sum += curve.points[k].second;
      }
      json["step"].push_back(curve.points[end - 1].first);
      json["value"].push_back(finite(sum / static_cast<double>(end - i)));
    }
    curves.push_back(std::move(json));
  }
  return curves;
}

/// Lists the values of an object, nested ones as "optimizer.lr".
void flatten(const OrderedJson& json, const std::string& prefix, OrderedJson& rows) {
  for (const auto& [key, value] : json.items()) {
    const std::string name = prefix.empty() ? key : fmt::format("{}.{}", prefix, key);
    if (value.is_object() && !value.empty()) {
      flatten(value, name, rows);
    } else {
      rows.push_back({name, value.is_string() ? value.get<std::string>() : value.dump()});
    }
  }
}

OrderedJson named_rows(const OrderedJson& json) {
  OrderedJson rows = OrderedJson::array();
  if (json.is_object()) {
    flatten(json, "", rows);
  }
  return rows;
}

OrderedJson environment_of(const RunFiles& run) {
  if (run.ranks.empty()) {
    return OrderedJson::array();
  }
  const OrderedJson& header = run.ranks.front().header;
  OrderedJson rows = named_rows(header.value("environment", OrderedJson::object()));
  for (const char* key : {"lockstep", "host", "run_id", "restart"}) {
    const OrderedJson value = header.value(key, OrderedJson(""));
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (!text.empty()) {
      rows.push_back({key, text});
    }
  }
  return rows;
}

OrderedJson operations_of(const RankView& view, int64_t now) {
  OrderedJson rows = OrderedJson::array();
  const auto& all = view.record.operations;
  for (size_t i = all.size() - std::min(all.size(), kMostOperations); i < all.size(); ++i) {
    const Operation& operation = all[i];
    const int64_t end = operation.is_over() ? operation.ended_ns : now;
    rows.push_back(
        {{"number", operation.number},
         {"step", operation.step},
         {"what", operation.describe()},
         {"state", name_of(operation.stage)},
         {"seconds", watch::seconds_of(end - operation.issued_ns)},
         {"ago", watch::seconds_of(now - operation.issued_ns)}});
  }
  return rows;
}

OrderedJson flight_of(const RunFiles& run) {
  if (!run.flight) {
    return {};
  }
  OrderedJson ranks = OrderedJson::array();
  for (const RankView& view : run.flight->ranks) {
    ranks.push_back(
        {{"rank", view.rank},
         {"host", view.host},
         {"doing", watch::describe(view, run.flight->now_ns)},
         {"operations", operations_of(view, run.flight->now_ns)}});
  }
  return {
      {"why", run.flight->why},
      {"time", run.flight->time},
      {"path", run.flight_path.string()},
      {"ranks", std::move(ranks)}};
}

/// Returns the mean of the last tenth of the known values, because a single loss is noisy.
OrderedJson recent(const OrderedJson& values) {
  double sum = 0;
  size_t count = 0;
  const size_t from = values.size() - (values.size() + 9) / 10;
  for (size_t i = from; i < values.size(); ++i) {
    if (values[i].is_number()) {
      sum += values[i].get<double>();
      ++count;
    }
  }
  return count == 0 ? OrderedJson() : OrderedJson(sum / static_cast<double>(count));
}

void add_totals(const RunFiles& run, OrderedJson& json) {
  if (run.ranks.empty()) {
    return;
  }
  const RankRecords& first = run.ranks.front();
  const Bucket total = total_of(first);
  double between = 0;
  for (const double seconds : first.between) {
    between += seconds;
  }
  const int world = first.header.value("world", 1);
  json["processes"] = world;
  json["updates"] = total.step;
  json["starts"] = first.processes;
  json["seconds"] = total.seconds + between;
  json["between"] = by_part(first.between);
  if (total.seconds > 0) {
    json["steps_per_second"] = static_cast<double>(total.steps) / total.seconds;
    json["samples_per_second"] =
        total.samples == 0
            ? OrderedJson()
            : OrderedJson(static_cast<double>(total.samples) * world / total.seconds);
  }
}

}  // namespace

OrderedJson page_data(const RunFiles& run) {
  OrderedJson json = {
      {"name", run.name},
      {"folder", run.folder.string()},
      {"status", run.status},
      {"processes", nullptr},
      {"updates", nullptr},
      {"starts", nullptr},
      {"seconds", nullptr},
      {"between", nullptr},
      {"steps_per_second", nullptr},
      {"samples_per_second", nullptr}};
  add_totals(run, json);
  json["split"] = split_of(run);
  json["series"] = series_of(run);
  json["loss"] = recent(json["series"]["loss"]);
  json["memory"] = memory_of(run);
  json["curves"] = logged_curves(run);
  json["config"] = named_rows(OrderedJson(run.config));
  json["environment"] = environment_of(run);
  json["flight"] = flight_of(run);
  json["notes"] = run.notes;
  return json;
}

}  // namespace lockstep::cli
