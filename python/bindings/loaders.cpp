// SPDX-License-Identifier: Apache-2.0
#include "python/bindings/loaders.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/data/loader/loader_core.h"
#include "lockstep/data/order/cursor.h"
#include "lockstep/data/order/shard.h"
#include "lockstep/data/order/stream_shard.h"
#include "python/bindings/bindings.h"
#include "python/bindings/json.h"

namespace lockstep::python {
namespace {

/// The order of a Python sampler: `order(epoch)` returns the indices of an epoch.
class PythonSampler final : public data::Sampler {
 public:
  PythonSampler(int64_t size, py::object order, uint64_t seed)
      : size_(size), order_(std::move(order)), seed_(seed) {}
  int64_t size() const override { return size_; }
  std::vector<int64_t> order(int64_t epoch) const override {
    const py::gil_scoped_acquire gil;
    return order_.get()(epoch).cast<std::vector<int64_t>>();
  }
  uint64_t seed() const override { return seed_; }

 private:
  int64_t size_;
  Held<> order_;
  uint64_t seed_;
};

std::shared_ptr<PythonLoader> make_loader(
    std::optional<int64_t> samples,
    int64_t batch_size,
    bool drop_last,
    py::object order,
    uint64_t seed) {
  const bool streamed = order.is_none();
  std::shared_ptr<const data::Sampler> sampler;
  if (!streamed) {
    sampler = std::make_shared<PythonSampler>(samples.value(), std::move(order), seed);
  }
  return std::make_shared<PythonLoader>(
      data::SourceInfo{.samples = samples, .streamed = streamed, .transferable = false},
      data::LoaderOptions{
          .batch_size = batch_size,
          .drop_last = drop_last,
          .workers = 0,
          .device = at::kCPU},  // Python moves the batches.
      std::move(sampler));
}

/// Returns the position of a loader, which load_position() reads.
py::object position_of(const PythonLoader& loader) {
  const data::LoaderCore& core = *loader.core();
  return from_json(
      {{"cursor", core.cursor()},
       {"samples", core.layout().samples()},
       {"round_rows", core.layout().global_batch_rows()}});
}

/// Throws ConfigError for the position of a loader with other data.
void load_position(PythonLoader& loader, const py::dict& position) {
  constexpr const char* kWhere = "load_state_dict";
  const nlohmann::json saved = to_json(position, kWhere);
  for (const char* key : {"cursor", "samples", "round_rows"}) {
    if (!saved.contains(key)) {
      throw ConfigError(
          kWhere,
          fmt::format(
              "the position has no '{}'; expected a state_dict() of a prepared loader", key));
    }
  }
  data::LoaderCore& core = *loader.core();
  const auto samples = saved.at("samples").get<int64_t>();
  if (samples != core.layout().samples()) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "the state was saved with {} samples; this loader has {}; give it the same data",
            samples,
            core.layout().samples()));
  }
  core.load_cursor(core.resharded(
      saved.at("cursor").get<data::Cursor>(), saved.at("round_rows").get<int64_t>()));
}

void bind_layouts(py::module_& module) {
  py::class_<data::ShardLayout>(module, "ShardLayout")
      .def(
          py::init([](int64_t samples,
                      int64_t batch_size,
                      bool drop_last,
                      int world,
                      bool even_batches,
                      bool split_batches) {
            return data::ShardLayout(
                samples,
                batch_size,
                drop_last,
                {.world = world, .even_batches = even_batches, .split_batches = split_batches});
          }),
          py::arg("samples"),
          py::arg("batch_size"),
          py::arg("drop_last"),
          py::arg("world"),
          py::arg("even_batches"),
          py::arg("split_batches"))
      .def("size", py::overload_cast<int>(&data::ShardLayout::size, py::const_))
      .def("valid_rows", &data::ShardLayout::valid_rows)
      // Returns the positions in the order of that rank's batch.
      .def("positions", [](const data::ShardLayout& layout, int64_t batch, int rank) {
        std::vector<int64_t> positions;
        for (int64_t row = 0; row < layout.rows(batch, rank); ++row) {
          positions.push_back(layout.position(batch, row, rank));
        }
        return positions;
      });
  py::class_<data::StreamShard>(module, "StreamShard")
      .def(
          py::init<int64_t, bool, int, int, bool>(),
          py::arg("batch_size"),
          py::arg("drop_last"),
          py::arg("world"),
          py::arg("rank"),
          py::arg("split_batches"))
      .def_property_readonly("round_rows", &data::StreamShard::round_rows)
      .def("positions", &data::StreamShard::positions, py::arg("round"), py::arg("read"))
      .def("size", &data::StreamShard::size);
}

}  // namespace

PythonLoader::PythonLoader(
    const data::SourceInfo& source,
    const data::LoaderOptions& options,
    std::shared_ptr<const data::Sampler> sampler)
    : core_(std::make_shared<data::LoaderCore>(source, options, std::move(sampler))) {}

void bind_loaders(py::module_& module) {
  bind_layouts(module);
  py::class_<data::Cursor>(module, "Cursor")
      .def_readonly("epoch", &data::Cursor::epoch)
      .def_readonly("batches", &data::Cursor::batches)
      .def_readonly("first_sample", &data::Cursor::first_sample);
  py::class_<data::ShardPlan, std::shared_ptr<data::ShardPlan>>(module, "ShardPlan")
      .def("__len__", &data::ShardPlan::size)
      .def("indices", py::overload_cast<int64_t>(&data::ShardPlan::indices, py::const_));
  py::class_<PythonLoader, std::shared_ptr<PythonLoader>>(
      module, "LoaderCore", DestroyedWithoutGil())
      .def(
          py::init(&make_loader),
          py::arg("samples"),
          py::arg("batch_size"),
          py::arg("drop_last"),
          py::arg("order"),
          py::arg("seed") = 0)
      .def("__len__", [](const PythonLoader& loader) { return loader.core()->layout().size(); })
      .def_property_readonly(
          "total_batch_size",
          [](const PythonLoader& loader) { return loader.core()->layout().global_batch_rows(); })
      .def_property_readonly(
          "batch_rows",
          [](const PythonLoader& loader) { return loader.core()->layout().batch_rows(); })
      .def_property_readonly(
          "samples", [](const PythonLoader& loader) { return loader.core()->layout().samples(); })
      .def_property_readonly(
          "epoch", [](const PythonLoader& loader) { return loader.core()->epoch(); })
      .def_property_readonly(
          "cursor", [](const PythonLoader& loader) { return loader.core()->cursor(); })
      .def_property_readonly(
          "is_sharded", [](const PythonLoader& loader) { return loader.core()->is_sharded(); })
      .def(
          "shard",
          [](PythonLoader& loader, int rank, int world, bool even_batches, bool split_batches) {
            loader.core()->shard(
                {.rank = rank,
                 .world = world,
                 .even_batches = even_batches,
                 .split_batches = split_batches});
          })
      .def_property_readonly(
          "even_batches",
          [](const PythonLoader& loader) { return loader.core()->spec().even_batches; })
      // The samples of the running pass in their order, as bytes, of which all ranks need the same.
      .def(
          "set_order",
          [](PythonLoader& loader, const std::vector<std::string>& parts) {
            uint32_t checksum = 0;
            for (const std::string& part : parts) {
              checksum = crc32c(checksum, part.data(), part.size());
            }
            loader.core()->set_order_checksum(checksum);
          })
      .def("position", &position_of)
      .def("load_position", &load_position)
      .def(
          "check_skip",
          [](const PythonLoader& loader, int64_t batches) { loader.core()->check_skip(batches); })
      // Returns the batches of this rank; None for a stream. The first `cursor.batches` are
      // skipped.
      .def(
          "begin_pass",
          [](PythonLoader& loader, int64_t skip) {
            return std::const_pointer_cast<data::ShardPlan>(loader.core()->begin_pass(skip));
          },
          py::arg("skip") = 0,
          NoGil())
      .def(
          "begin_batch",
          [](PythonLoader& loader) { loader.core()->begin_batch(loader.core()->layout()); },
          NoGil())
      // A batch of a stream, whose rows Python knows.
      .def(
          "begin_stream_batch",
          [](PythonLoader& loader,
             std::vector<int64_t> rows_per_rank,
             std::vector<int64_t> valid_rows,
             bool is_last) {
            data::BatchInfo info;
            info.is_last = is_last;
            info.is_last_somewhere = is_last;
            info.ends_pass = is_last && loader.core()->spec().even_batches;
            info.rows_per_rank = std::move(rows_per_rank);
            info.valid_rows = std::move(valid_rows);
            loader.core()->begin_batch(std::move(info));
          },
          NoGil())
      .def(
          "set_epoch",
          [](PythonLoader& loader, int64_t epoch) {
            data::Cursor cursor = loader.core()->cursor();
            cursor = {.seed = cursor.seed, .epoch = epoch};
            loader.core()->load_cursor(cursor);
          })
      .def(
          "end_batch", [](PythonLoader& loader) { loader.core()->end_batch(); }, NoGil())
      .def(
          "finish_pass", [](PythonLoader& loader) { loader.core()->finish_pass(); }, NoGil())
      .def(
          "leave_pass", [](PythonLoader& loader) { loader.core()->leave_pass(); }, NoGil());
}

}  // namespace lockstep::python
