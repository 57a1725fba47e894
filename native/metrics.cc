#include "metrics.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "error.h"
#include "triton_api.h"

namespace triton {

namespace nb = nanobind;

namespace {

// The core wants every metric of a family deleted before the family: a metric keeps its family
// alive.
class Family {
 public:
  Family(int kind, const std::string& name, const std::string& description) {
    check(server_api.MetricFamilyNew(&family_, static_cast<MetricKind>(kind), name.c_str(),
                                     description.c_str()));
  }
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;
  ~Family() { ignore(server_api.MetricFamilyDelete(family_)); }
  MetricFamily* get() const { return family_; }

 private:
  MetricFamily* family_ = nullptr;
};

class FamilyMetric {
 public:
  FamilyMetric(std::shared_ptr<Family> family, nb::dict labels, const std::vector<double>& buckets)
      : family_(std::move(family)) {
    std::vector<const Parameter*> parameters;
    for (auto [name, value] : labels) {
      parameters.push_back(server_api.ParameterNew(nb::cast<std::string>(name).c_str(),
                                                   ParameterType::kString,
                                                   nb::cast<std::string>(value).c_str()));
    }
    Error* error = create(parameters, buckets);
    for (const Parameter* parameter : parameters)
      server_api.ParameterDelete(const_cast<Parameter*>(parameter));
    check(error);
  }
  FamilyMetric(const FamilyMetric&) = delete;
  FamilyMetric& operator=(const FamilyMetric&) = delete;
  ~FamilyMetric() { ignore(server_api.MetricDelete(metric_)); }

  double value() const {
    double read = 0;
    check(server_api.MetricValue(metric_, &read));
    return read;
  }
  void increment(double by) { check(server_api.MetricIncrement(metric_, by)); }
  void set(double to) { check(server_api.MetricSet(metric_, to)); }
  void observe(double sample) { check(server_api.MetricObserve(metric_, sample)); }

 private:
  Error* create(std::vector<const Parameter*>& labels, const std::vector<double>& buckets) {
    MetricArgs* args = nullptr;
    Error* error = nullptr;
    if (!buckets.empty()) {
      error = server_api.MetricArgsNew(&args);
      if (error == nullptr)
        error = server_api.MetricArgsSetHistogram(args, buckets.data(), buckets.size());
    }
    if (error == nullptr) {
      error = server_api.MetricNewWithArgs(&metric_, family_->get(), labels.data(), labels.size(),
                                           args);
    }
    if (args != nullptr) ignore(server_api.MetricArgsDelete(args));
    return error;
  }

  std::shared_ptr<Family> family_;
  Metric* metric_ = nullptr;
};

}  // namespace

void bind_metrics(nb::module_& module) {
  nb::class_<Family>(module, "MetricFamily",
                     "A family of metrics: kind (0 counter, 1 gauge, 2 histogram), name, help.")
      .def(nb::init<int, const std::string&, const std::string&>());
  nb::class_<FamilyMetric>(module, "Metric",
                           "One metric: its family, labels and, for a histogram, bucket bounds.")
      .def(nb::init<std::shared_ptr<Family>, nb::dict, const std::vector<double>&>(),
           nb::sig("def __init__(self, family: MetricFamily, labels: dict[str, str], "
                   "buckets: Sequence[float], /) -> None"))
      .def_prop_ro("value", &FamilyMetric::value)
      .def("increment", &FamilyMetric::increment)
      .def("set", &FamilyMetric::set)
      .def("observe", &FamilyMetric::observe);
}

}  // namespace triton
