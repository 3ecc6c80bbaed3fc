// Model::describe: what was opened, as JSON with the keys of the Python runtime's Model.info.
#include "base/text.h"
#include "call/model.h"

namespace ecr {
namespace {

void write_host(JsonWriter* out, const Host& host) {
  out->open('{').key("system").string(host.system).key("arch").string(host.arch);
  out->key("cpus")
      .raw(cat(host.cpus))
      .key("memory_bytes")
      .raw(host.memory > 0 ? cat(host.memory) : "null");
  out->key("features").open('[');
  for (const std::string& feature : host.features) out->string(feature);
  out->close(']').key("glibc");
  host.glibc ? out->string(version_text(*host.glibc)) : out->raw("null");
  out->close('}');
}

}  // namespace

std::string Model::describe() {
  const auto call = enter();
  const Manifest& manifest = folder_.manifest();
  JsonWriter out;
  out.open('{');
  for (const char* const key :
       {"name", "format_version", "precision", "built_by", "inputs", "outputs", "axes",
        "length_axis", "buckets", "generation", "text", "labels", "state", "policy", "speech"}) {
    if (const Value* const value = manifest.document.find(key)) out.key(key).value(*value);
  }
  if (!manifest.generation) out.key("generation").raw("null");
  out.key("path").string(folder_.path());
  out.key("manifest_sha256").string(folder_.manifest_sha256());
  out.key("variant").string(variant_->name).key("backend").string(variant_->backend);
  out.key("tolerance").open('{').key("atol").raw(cat(tolerance().atol));
  out.key("rtol").raw(cat(tolerance().rtol)).close('}').key("fallback");
  fallback_.empty() ? out.raw("null") : out.string(fallback_);
  out.key("refused_variants").open('{');
  for (const Refusal& item : refused_) {
    out.key(item.name).open('[');
    for (const std::string& reason : item.reasons) out.string(reason);
    out.close(']');
  }
  out.close('}');
  programs_->describe(&out);
  out.key("loaded_buckets").open('[');
  for (const size_t bucket : programs_->loaded()) out.raw(cat(bucket));
  out.close(']').key("host");
  write_host(&out, host_);
  out.close('}');
  return out.text();
}

}  // namespace ecr
