// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host/world.h"
#include "lockstep/base/text/variable_name.h"
#include "lockstep/comm/connect/connect.h"
#include "lockstep/data/sample/random.h"
#include "python/bindings/bindings.h"

namespace lockstep::python {
namespace {

ConnectOptions connect_options(
    std::optional<int64_t> timeout_ms,
    std::optional<int64_t> join_timeout_ms,
    uint64_t flight_group) {
  ConnectOptions options = ConnectOptions::from_environment(Environment::process());
  if (timeout_ms) {
    options.timeout = comm::Milliseconds(*timeout_ms);
  }
  if (join_timeout_ms) {
    options.join_timeout = comm::Milliseconds(*join_timeout_ms);
  }
  options.flight_group = flight_group;
  return options;
}

void bind_world(py::module_& module) {
  py::class_<WorldSpec>(module, "WorldSpec")
      .def(py::init<>())
      .def_readwrite("rank", &WorldSpec::rank)
      .def_readwrite("size", &WorldSpec::size)
      .def_readwrite("local_rank", &WorldSpec::local_rank)
      .def_readwrite("local_size", &WorldSpec::local_size)
      .def_readwrite("master_addr", &WorldSpec::master_addr)
      .def_readwrite("master_port", &WorldSpec::master_port)
      .def_readwrite("source", &WorldSpec::source)
      .def_readwrite("restart_count", &WorldSpec::restart_count);
  module.def(
      "world_from_environment", [] { return world_from_environment(Environment::process()); });
  module.def("join_timeout_ms", [] {
    return ConnectOptions::from_environment(Environment::process()).join_timeout.count();
  });
  module.def("boolean_variable", [](const std::string& name) {
    return Environment::process().boolean(name);
  });
  module.def(
      "is_set_by_launcher", [](const std::string& name) { return is_set_by_launcher(name); });
}

comm::Op op_named(const std::string& name) {
  using comm::Op;
  for (const Op op :
       {Op::kAllReduce,
        Op::kReduceScatter,
        Op::kAllGather,
        Op::kAllToAll,
        Op::kBroadcast,
        Op::kGather,
        Op::kScatter}) {
    if (name == comm::name_of(op)) {
      return op;
    }
  }
  throw ConfigError("refuse", fmt::format("expected a collective; got '{}'", name));
}

}  // namespace

void bind_group(py::module_& module) {
  bind_world(module);
  py::enum_<ReduceOp>(module, "ReduceOp")
      .value("SUM", ReduceOp::kSum)
      .value("AVG", ReduceOp::kAvg)
      .value("MIN", ReduceOp::kMin)
      .value("MAX", ReduceOp::kMax)
      .value("PRODUCT", ReduceOp::kProduct);
  bind_pending(module);
  py::class_<Group> bound(module, "Group", DestroyedWithoutGil());
  bound.def(py::init<>())
      .def_property_readonly("rank", &Group::rank)
      .def_property_readonly("size", &Group::size)
      .def_property_readonly("transport_name", &Group::transport_name)
      .def_property_readonly(
          "timeout_ms", [](const Group& group) { return group.timeout().count(); })
      .def(
          "all_reduce",
          [](Group& group, at::Tensor tensor, ReduceOp op) {
            return group.all_reduce(std::move(tensor), op).wait();
          },
          py::arg("tensor"),
          py::arg("op") = ReduceOp::kSum,
          NoGil())
      .def(
          "all_gather",
          [](Group& group, const at::Tensor& input) { return group.all_gather(input).wait(); },
          NoGil())
      .def(
          "reduce_scatter",
          [](Group& group, const at::Tensor& input, ReduceOp op) {
            return group.reduce_scatter(input, op).wait();
          },
          py::arg("input"),
          py::arg("op") = ReduceOp::kSum,
          NoGil())
      .def(
          "all_to_all",
          [](Group& group, const at::Tensor& input) { return group.all_to_all(input).wait(); },
          NoGil())
      .def(
          "broadcast",
          [](Group& group, at::Tensor tensor, int root) {
            return group.broadcast(std::move(tensor), root).wait();
          },
          py::arg("tensor"),
          py::arg("root") = 0,
          NoGil())
      .def(
          "send",
          [](Group& group, const at::Tensor& tensor, int peer) { group.send(tensor, peer).wait(); },
          NoGil())
      .def(
          "recv",
          [](Group& group, const at::Tensor& tensor, int peer) {
            return group.recv(tensor, peer).wait();
          },
          NoGil())
      .def("barrier", &Group::barrier, NoGil())
      .def(
          "refuse",
          [](Group& group, const std::string& op, const at::Tensor& argument) {
            group.refuse(op_named(op), argument);
          },
          py::arg("op"),
          py::arg("argument"),
          NoGil())
      .def("set_number", &Group::set_number, py::arg("number"))
      .def("number_of", &Group::number_of, py::arg("rank"), NoGil())
      .def("split", &Group::split, py::arg("color"), py::arg("key") = 0, NoGil());
  bind_starts(bound);
  module.def(
      "connect",
      [](const WorldSpec& world,
         std::optional<int64_t> timeout_ms,
         std::optional<int64_t> join_timeout_ms,
         uint64_t flight_group) {
        return connect(world, connect_options(timeout_ms, join_timeout_ms, flight_group));
      },
      py::arg("world"),
      py::arg("timeout_ms") = std::nullopt,
      py::arg("join_timeout_ms") = std::nullopt,
      py::arg("flight_group") = 0,
      NoGil());
  module.def(
      "synchronize_rng_states",
      [](Group& group, const std::vector<std::string>& types) {
        std::vector<data::RngType> all;
        for (const std::string& type : types) {
          all.push_back(data::rng_type_of(type));
        }
        data::synchronize_rng_states(group, all);
      },
      NoGil());
}

}  // namespace lockstep::python
