"""The protocol's messages, as protobuf classes in a pool of their own.

Names, numbers and types are those of ``open_inference_grpc.proto`` (kserve/open-inference-protocol), and for
configurations, statistics and the index those of Triton's ``grpc_service.proto`` and ``model_config.proto``. Those of
the health protocol are of ``grpc.health.v1`` (grpc/grpc-proto), which the bytes of a message don't say. The pool is not protobuf's default one: a client library in the same process brings the same names.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
#: Each takes a message NAMERequest and answers NAMEResponse.
METHODS = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
)
HEALTH_SERVICE = "grpc.health.v1.Health"

#: Fields of each message as "type name number"; "*" after the type: repeated; "map": of InferParameter.
_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live 1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready 1",
    "ModelReadyRequest": "string name 1, string version 2",
    "ModelReadyResponse": "bool ready 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name 1, string version 2, string* extensions 3",
    "ModelMetadataRequest": "string name 1, string version 2",
    "TensorMetadata": "string name 1, string datatype 2, int64* shape 3",
    "ModelMetadataResponse": "string name 1, string* versions 2, string platform 3, "
    "TensorMetadata* inputs 4, TensorMetadata* outputs 5",
    "InferParameter": "bool bool_param 1, int64 int64_param 2, string string_param 3, "
    "double double_param 4, uint64 uint64_param 5",
    "InferTensorContents": "bool* bool_contents 1, int32* int_contents 2, int64* int64_contents 3, "
    "uint32* uint_contents 4, uint64* uint64_contents 5, float* fp32_contents 6, "
    "double* fp64_contents 7, bytes* bytes_contents 8",
    "InferInputTensor": "string name 1, string datatype 2, int64* shape 3, map parameters 4, "
    "InferTensorContents contents 5",
    "InferRequestedOutputTensor": "string name 1, map parameters 2",
    "ModelInferRequest": "string model_name 1, string model_version 2, string id 3, "
    "map parameters 4, InferInputTensor* inputs 5, InferRequestedOutputTensor* outputs 6, "
    "bytes* raw_input_contents 7",
    "InferOutputTensor": "string name 1, string datatype 2, int64* shape 3, map parameters 4, "
    "InferTensorContents contents 5",
    "ModelInferResponse": "string model_name 1, string model_version 2, string id 3, "
    "map parameters 4, InferOutputTensor* outputs 5, bytes* raw_output_contents 6",
    "ModelConfigRequest": "string name 1, string version 2",
    "ModelInput": "string name 1, DataType data_type 2, int64* dims 4",
    "ModelOutput": "string name 1, DataType data_type 2, int64* dims 3",
    "ModelConfig": "string name 1, string platform 2, int32 max_batch_size 4, ModelInput* input 5, "
    "ModelOutput* output 6, string backend 17",
    "ModelConfigResponse": "ModelConfig config 1",
    "ModelStatisticsRequest": "string name 1, string version 2",
    "StatisticDuration": "uint64 count 1, uint64 ns 2",
    "InferStatistics": "StatisticDuration success 1, StatisticDuration fail 2, StatisticDuration queue 3, "
    "StatisticDuration compute_input 4, StatisticDuration compute_infer 5, "
    "StatisticDuration compute_output 6, StatisticDuration cache_hit 7, StatisticDuration cache_miss 8",
    "InferBatchStatistics": "uint64 batch_size 1, StatisticDuration compute_input 2, "
    "StatisticDuration compute_infer 3, StatisticDuration compute_output 4",
    "ModelStatistics": "string name 1, string version 2, uint64 last_inference 3, uint64 inference_count 4, "
    "uint64 execution_count 5, InferStatistics inference_stats 6, InferBatchStatistics* batch_stats 7",
    "ModelStatisticsResponse": "ModelStatistics* model_stats 1",
    "RepositoryIndexRequest": "string repository_name 1, bool ready 2",
    "ModelIndex": "string name 1, string version 2, string state 3, string reason 4",
    "RepositoryIndexResponse": "ModelIndex* models 1",
    "HealthCheckRequest": "string service 1",
    "HealthCheckResponse": "ServingStatus status 1",
}
#: As ``model_config.proto`` and ``health.proto`` number them.
_ENUMS = {
    "DataType": (
        "TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT8",
        "TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_STRING", "TYPE_BF16",
    ),
    "ServingStatus": ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"),
}  # fmt: skip
#: Of this message at most one field is set.
_ONE_OF = "InferParameter"


def _describe() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="edgecompile/inference.proto", package=PACKAGE, syntax="proto3"
    )
    for kind, values in _ENUMS.items():
        types = file.enum_type.add(name=kind)
        for value, name in enumerate(values):
            types.value.add(name=name, number=value)
    for name, fields in _MESSAGES.items():
        target = file.message_type.add(name=name)
        if name == _ONE_OF:
            target.oneof_decl.add(name="parameter_choice")
        for words in filter(None, fields.split(", ")):
            kind, field, number = words.split()
            if kind == "map":
                _add_map(target)
                kind = f"{name}.ParametersEntry*"
            _add_field(target, kind, field, int(number))
            if name == _ONE_OF:
                target.field[-1].oneof_index = 0
    return file


def _add_map(target: Any) -> None:
    entry = target.nested_type.add(name="ParametersEntry")
    entry.options.map_entry = True
    _add_field(entry, "string", "key", 1)
    _add_field(entry, "InferParameter", "value", 2)


def _add_field(target: Any, kind: str, name: str, number: int) -> None:
    types = descriptor_pb2.FieldDescriptorProto
    repeated, kind = kind.endswith("*"), kind.rstrip("*")
    field = target.field.add(name=name, number=number)
    field.label = types.LABEL_REPEATED if repeated else types.LABEL_OPTIONAL
    if kind[0].islower():
        field.type = types.Type.Value(f"TYPE_{kind.upper()}")
    else:
        field.type = types.TYPE_ENUM if kind in _ENUMS else types.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kind}"


_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(_describe().SerializeToString())


def message(name: str) -> Any:
    """The class of a message of the protocol, such as ``ModelInferRequest``."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))
