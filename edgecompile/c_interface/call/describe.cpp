// Model::describe: what was opened, as JSON with the keys of the Python runtime's Model.info.
#include "base/text.h"
#include "call/model.h"

namespace ecr {
namespace {

void write_number(JsonWriter* out, const Number& number) {
  number.is_integer ? out->integer(number.integer) : out->number(number.real);
}

void write_tensors(JsonWriter* out, const Manifest& manifest,
                   const std::vector<TensorSpec>& tensors, bool is_input) {
  out->open('[');
  for (const TensorSpec& spec : tensors) {
    out->open('{').key("name").string(spec.name).key("dtype").string(spec.type->name);
    out->key("shape").open('[');
    for (const Dim& dim : spec.shape) {
      if (dim.kind == Dim::Kind::kFixed) out->integer(dim.size);
      if (dim.kind == Dim::Kind::kAxis) out->string(manifest.axes[dim.axis].name);
      if (dim.kind == Dim::Kind::kAny) out->null();
    }
    out->close(']');
    if (is_input) {
      out->key("pad");
      spec.pad ? write_number(out, *spec.pad) : static_cast<void>(out->null());
      out->key("bounds");
      if (spec.bounds) {
        out->open('[');
        write_number(out, spec.bounds->first);
        write_number(out, spec.bounds->second);
        out->close(']');
      } else {
        out->null();
      }
      if (spec.fallback) {
        out->key("default");
        write_number(out, *spec.fallback);
      }
    }
    out->close('}');
  }
  out->close(']');
}

void write_buckets(JsonWriter* out, const Manifest& manifest) {
  out->open('[');
  for (const Bucket& bucket : manifest.buckets) {
    out->open('{').key("mode").string(bucket.padded ? "pad" : "exact").key("axes").open('{');
    for (size_t axis = 0; axis < bucket.axes.size(); ++axis) {
      const Extent& extent = bucket.axes[axis];
      out->key(manifest.axes[axis].name).open('{');
      out->key("lo").integer(extent.lo).key("hi").integer(extent.hi);
      out->key("hint").integer(extent.hint).close('}');
    }
    out->close('}');
    if (bucket.pad_axes.size() > 1) {
      out->key("pad_axes").open('[');
      for (const size_t axis : bucket.pad_axes) out->string(manifest.axes[axis].name);
      out->close(']');
    }
    out->close('}');
  }
  out->close(']');
}

void write_host(JsonWriter* out, const Host& host) {
  out->open('{').key("system").string(host.system).key("arch").string(host.arch);
  out->key("model").string(host.model).key("cpus").integer(host.cpus);
  out->key("memory_bytes");
  host.memory > 0 ? out->integer(host.memory) : out->null();
  out->key("features").open('[');
  for (const std::string& feature : host.features) out->string(feature);
  out->close(']').key("glibc");
  if (host.glibc) {
    out->string(cat(host.glibc->first, ".", host.glibc->second));
  } else {
    out->null();
  }
  out->key("versions").open('{').key("kernel").string(host.kernel).close('}').close('}');
}

}  // namespace

std::string Model::describe() {
  const Call call(this);
  const Manifest& manifest = folder_.manifest();
  JsonWriter out;
  out.open('{').key("name").string(manifest.name);
  out.key("format_version").integer(kFormatVersion);
  out.key("precision").string(manifest.precision);
  out.key("built_by").open('{');
  for (const auto& [key, text] : manifest.built_by) out.key(key).string(text);
  out.close('}').key("inputs");
  write_tensors(&out, manifest, manifest.inputs, true);
  out.key("outputs");
  write_tensors(&out, manifest, manifest.outputs, false);
  out.key("axes").open('{');
  for (const Axis& axis : manifest.axes) {
    out.key(axis.name).open('{').key("lo").integer(axis.extent.lo);
    out.key("hi").integer(axis.extent.hi).close('}');
  }
  out.close('}').key("path").string(folder_.path());
  out.key("manifest_sha256").string(folder_.manifest_sha256()).key("length_axis");
  if (manifest.length_axis) {
    out.string(manifest.axes[*manifest.length_axis].name);
  } else {
    out.null();
  }
  out.key("buckets");
  write_buckets(&out, manifest);
  if (!manifest.generation) out.key("generation").null();
  for (const auto& [key, json] : manifest.passed_on) out.key(key).raw(json);
  out.key("tolerance").open('{').key("atol").number(manifest.atol);
  out.key("rtol").number(manifest.rtol).close('}');
  out.key("variant").string(variant_->name).key("backend").string(variant_->backend);
  // No variant for a GPU is run here, so nothing is taken in its place, and no mode is chosen.
  out.key("fallback").null().key("mode").string("default").key("refused_variants").open('{');
  for (const Refusal& item : refused_) {
    out.key(item.name).open('[');
    for (const std::string& reason : item.reasons) out.string(reason);
    out.close(']');
  }
  out.close('}').key("threads").integer(runtime_->threads());
  out.key("concurrency").integer(concurrency_).key("loaded_buckets").open('[');
  for (size_t i = 0; i < programs_.size(); ++i) {
    if (ready_[i].load(std::memory_order_acquire) != nullptr) out.integer(static_cast<int64_t>(i));
  }
  out.close(']').key("host");
  write_host(&out, host_);
  out.close('}');
  return out.text();
}

}  // namespace ecr
