# SPDX-License-Identifier: Apache-2.0
# Made by scripts/describe-python from the public headers.
from ctypes import (
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int64,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint32,
    c_uint64,
    c_void_p,
)

OAR_ANY_SOURCE = -1
OAR_ANY_TAG = -1
OAR_BACKEND_ABI = 4
OAR_CAN_ANY = 1
OAR_CAN_AT_MOST = 64
OAR_CAN_MEMORY = 8
OAR_CAN_ORDER = 32
OAR_CAN_PROBE = 2
OAR_CAN_SYNCHRONOUS = 4
OAR_CUSTOM_OP_INPUTS = 8
OAR_LAUNCH_AUTO = -1
OAR_LIVE_TARGETS = 8
OAR_LOAD_MISSING = 1
OAR_LOAD_UNUSED = 2
OAR_MAX_DIMS = 8
OAR_MESH_DIMS = 4
OAR_MOVES = 12
OAR_NCCL_ID_BYTES = 128
OAR_NEWEST = -1
OAR_OPTIM_CHUNK = 512
OAR_OVER_GROUPS = 8
OAR_RECORDS = 512
OAR_RPC_BUCKETS = 128
OAR_SCHEDULE_KINDS = 7
OAR_STAGE_TENSORS = 8
OAR_STORE_KEY_MAX = 200
OAR_STORE_VALUE_MAX = 1048576
OAR_STREAM_URGENT = 1
OAR_VERSION_CODE = 100
OAR_WANTS_LINKS = 16
OAR_WINDOW_TOKEN_BYTES = 96

OAR_ACT_F = 0
OAR_ACT_B = 1
OAR_ACT_I = 2
OAR_ACT_W = 3
OAR_ACT_SEND_F = 4
OAR_ACT_RECV_F = 5
OAR_ACT_SEND_B = 6
OAR_ACT_RECV_B = 7
OAR_ACT_REDUCE_GRAD = 8
OAR_ACT_UNSHARD = 9
OAR_ACT_RESHARD = 10

OAR_ACTIVATION_DEFAULT = 0
OAR_RELU = 1
OAR_GELU = 2
OAR_GELU_TANH = 3
OAR_SILU = 4
OAR_TANH = 5
OAR_SIGMOID = 6
OAR_SOFTPLUS = 7

OAR_COLL_BARRIER = 0
OAR_COLL_BROADCAST = 1
OAR_COLL_ALL_REDUCE = 2
OAR_COLL_REDUCE = 3
OAR_COLL_GATHER = 4
OAR_COLL_SCATTER = 5
OAR_COLL_ALL_GATHER = 6
OAR_COLL_REDUCE_SCATTER = 7
OAR_COLL_ALL_TO_ALL = 8
OAR_COLL_SEND = 9
OAR_COLL_RECV = 10
OAR_COLL_PROBE = 11
OAR_COLL_COUNT = 12

OAR_CPU = 0
OAR_CUDA = 1

OAR_F32 = 0
OAR_F64 = 1
OAR_F16 = 2
OAR_BF16 = 3
OAR_I8 = 4
OAR_U8 = 5
OAR_I16 = 6
OAR_U16 = 7
OAR_I32 = 8
OAR_U32 = 9
OAR_I64 = 10
OAR_U64 = 11
OAR_BOOL = 12
OAR_F8E4M3 = 13
OAR_F8E5M2 = 14
OAR_DTYPE_COUNT = 13
OAR_DTYPE_COUNT_ALL = 15

OAR_FSDP_KEEP_OUTERMOST = 0
OAR_FSDP_KEEP_NOTHING = 1
OAR_FSDP_KEEP_PASS = 2

OAR_GONE_DIED = 1
OAR_GONE_LEFT = 2
OAR_GONE_UNREACHABLE = 3

OAR_HOLD_AUTO = 0
OAR_HOLD_MAPPED = 1
OAR_HOLD_HOST = 2
OAR_HOLD_OWN = 3

OAR_LAYER_OTHER = 0
OAR_LAYER_LINEAR = 1
OAR_LAYER_EMBEDDING = 2
OAR_LAYER_LAYER_NORM = 3
OAR_LAYER_RMS_NORM = 4
OAR_LAYER_DROPOUT = 5
OAR_LAYER_ATTENTION = 6

OAR_LIVE_UNKNOWN = 0
OAR_LIVE_STARTS = 1
OAR_LIVE_RUNS = 2
OAR_LIVE_STOPPED = 3
OAR_LIVE_EXITED = 4
OAR_LIVE_DEAD = 5

OAR_GRADS_EQUAL = 1
OAR_GRADS_ADD = 2

OAR_LOG_OFF = 0
OAR_LOG_ERROR = 1
OAR_LOG_WARN = 2
OAR_LOG_INFO = 3
OAR_LOG_DEBUG = 4

OAR_LOSS_MEAN = 0
OAR_LOSS_SUM = 1
OAR_LOSS_NONE = 2
OAR_LOSS_BATCH_MEAN = 3

OAR_LR_CONSTANT = 0
OAR_LR_LINEAR = 1
OAR_LR_COSINE = 2
OAR_LR_STEP = 3

OAR_MATH_F32 = 0
OAR_MATH_TF32 = 1

OAR_BEFORE_FORWARD = 0
OAR_AFTER_FORWARD = 1
OAR_BEFORE_BACKWARD = 2
OAR_AFTER_BACKWARD = 3

OAR_PASS_NONE = 0
OAR_PASS_WHOLE = 1
OAR_PASS_INPUTS = 2
OAR_PASS_WEIGHTS = 3

OAR_PICTURE_TEXT = 0
OAR_PICTURE_SVG = 1
OAR_PICTURE_CHROME = 2

OAR_REPLICATE = 0
OAR_SHARD = 1
OAR_PARTIAL = 2
OAR_FLAT = 3

OAR_RECORD_POSTED = 1
OAR_RECORD_DONE = 2
OAR_RECORD_FAILED = 3

OAR_REDUCE_OP_SUM = 0
OAR_REDUCE_OP_AVG = 1
OAR_REDUCE_OP_PROD = 2
OAR_REDUCE_OP_MIN = 3
OAR_REDUCE_OP_MAX = 4
OAR_REDUCE_OP_BAND = 5
OAR_REDUCE_OP_BOR = 6
OAR_REDUCE_OP_BXOR = 7
OAR_REDUCE_OP_PREMUL_SUM = 8
OAR_REDUCE_OP_WEIGHTED_MEAN = 9
OAR_REDUCE_OP_COUNT = 10

OAR_RPC_POOL = 0
OAR_RPC_SERIAL = 1
OAR_RPC_INLINE = 2

OAR_RPC_MADE = 0
OAR_RPC_SERVED = 1

OAR_SCHEDULE_GPIPE = 0
OAR_SCHEDULE_1F1B = 1
OAR_SCHEDULE_INTERLEAVED = 2
OAR_SCHEDULE_LOOPED_BFS = 3
OAR_SCHEDULE_ZB_H1 = 4
OAR_SCHEDULE_ZB_V = 5
OAR_SCHEDULE_DUALPIPE_V = 6

OAR_OK = 0
OAR_E_ARG = 1
OAR_E_NOMEM = 2
OAR_E_SYSTEM = 3
OAR_E_RANK = 4
OAR_E_WORLD = 5
OAR_E_SIZE = 6
OAR_E_MISMATCH = 7
OAR_E_TIMEOUT = 8
OAR_E_PEER = 9
OAR_E_ABORTED = 10
OAR_E_CLOSED = 11
OAR_E_UNAVAILABLE = 12
OAR_E_UNSUPPORTED = 13
OAR_E_NOT_FOUND = 14
OAR_E_STATE = 15
OAR_E_DATA = 16
OAR_E_AUTH = 17
OAR_E_SHAPE = 18
OAR_E_DTYPE = 19
OAR_E_DEVICE = 20
OAR_E_INTERNAL = 21
OAR_E_GPU = 22
OAR_E_BUSY = 23
OAR_E_CANCELLED = 24

OAR_TP_COLUMN = 1
OAR_TP_ROW = 2
OAR_TP_HEADS = 3
OAR_TP_VOCABULARY = 4
OAR_TP_SEQUENCE = 5
OAR_TP_LAST_NORM = 6

OAR_TRACE_OPERATION = 2
OAR_TRACE_CALL = 3
OAR_TRACE_WAIT = 4
OAR_TRACE_FORWARD = 5
OAR_TRACE_BACKWARD = 6
OAR_TRACE_OPTIMIZER = 7
OAR_TRACE_LOADER = 8
OAR_TRACE_CHECKPOINT = 9
OAR_TRACE_STAGE = 10
OAR_TRACE_GPU = 11
OAR_TRACE_USER = 12
OAR_TRACE_METRIC = 13
OAR_TRACE_STEP = 14

OAR_ZERO_STAGE_3 = 0
OAR_ZERO_STAGE_2 = 2
OAR_ZERO_STAGE_1 = 1


class oar_action(Structure):
    _fields_ = [
        ("stage", c_int),
        ("act", c_int),
        ("micro", c_int),
        ("joined", c_int),
    ]


class oar_adam_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("lr", c_double),
        ("beta1", c_double),
        ("beta2", c_double),
        ("eps", c_double),
        ("weight_decay", c_double),
        ("no_decay", c_int),
        ("no_beta1", c_int),
        ("no_beta2", c_int),
        ("no_eps", c_int),
        ("amsgrad", c_int),
        ("master_weights", c_int),
    ]


class oar_attention_layer_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("causal", c_int),
        ("no_bias", c_int),
        ("rotary_base", c_double),
        ("dtype", c_int),
        ("kv_heads", c_int),
        ("dropout", c_double),
        ("dropout_seed", c_uint64),
        ("inner", c_int64),
        ("all_heads", c_int),
        ("first_head", c_int),
    ]


class oar_attention_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("causal", c_int),
        ("scale", c_double),
        ("mask", c_void_p),
        ("dropout", c_double),
        ("seed", c_uint64),
        ("all_heads", c_int),
        ("first_head", c_int),
    ]


class oar_backend_caps(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("dtypes", c_uint32),
        ("devices", c_uint32),
        ("note", c_char_p),
        ("can", c_uint32),
    ]


class oar_backend_env(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rank", c_int),
        ("ranks", c_int),
        ("store", c_void_p),
        ("store_address", c_char_p),
        ("name", c_char_p),
        ("timeout_ms", c_int64),
        ("device", c_int),
        ("stream", c_void_p),
        ("id", c_void_p),
        ("split", c_void_p),
    ]


class oar_backend_ops(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("abi", c_uint32),
        ("name", c_char_p),
        ("self_size", c_size_t),
        ("probe", c_void_p),
        ("open", c_void_p),
        ("close", c_void_p),
        ("send", c_void_p),
        ("recv", c_void_p),
        ("peek", c_void_p),
        ("progress", c_void_p),
        ("wait_fd", c_void_p),
        ("arm", c_void_p),
        ("wake", c_void_p),
        ("abort", c_void_p),
        ("takes", c_void_p),
        ("lend", c_void_p),
        ("batch", c_void_p),
        ("split", c_void_p),
        ("drop", c_void_p),
        ("post_count", c_size_t),
        ("post", c_void_p * 12),
    ]


class oar_batch_norm_merge(Structure):
    _fields_ = [
        ("arg", c_void_p),
        ("moments", c_void_p),
        ("sums", c_void_p),
        ("parts", c_void_p),
        ("gather_on", c_void_p),
    ]


class oar_batch_norm_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("eps", c_double),
        ("momentum", c_double),
        ("no_affine", c_int),
        ("no_running", c_int),
        ("dtype", c_int),
        ("no_eps", c_int),
        ("no_momentum", c_int),
    ]


class oar_bce_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("reduction", c_int),
        ("weight", c_void_p),
        ("positive_weight", c_void_p),
    ]


class oar_device(Structure):
    _fields_ = [
        ("kind", c_int),
        ("index", c_int),
    ]


class oar_span(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("count", c_size_t),
        ("dtype", c_int),
        ("device", oar_device),
        ("read_only", c_int),
    ]


class oar_bucket(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("index", c_int),
        ("buckets", c_int),
        ("data", oar_span),
        ("arrays", c_int),
        ("array", c_void_p),
        ("at", c_void_p),
        ("count", c_void_p),
        ("weight", c_double),
        ("weighted", c_int),
        ("canonical", c_int),
        ("storage", c_void_p),
    ]


class oar_call_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("timeout_ms", c_int64),
        ("label", c_char_p),
        ("stream", c_void_p),
        ("weight", c_double),
        ("canonical", c_int),
        ("prepare", c_int),
        ("message", c_void_p),
        ("synchronous", c_int),
        ("key", c_uint64),
        ("at_most", c_int),
    ]


class oar_shape(Structure):
    _fields_ = [
        ("ndim", c_int),
        ("dim", c_int64 * 8),
    ]


class oar_catalog_entry(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("section", c_char_p),
        ("name", c_char_p),
        ("dtype", c_int),
        ("shape", oar_shape),
        ("bytes", c_uint64),
        ("chunks", c_int64),
        ("alias_of", c_char_p),
    ]


class oar_checkpoint_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("read_only", c_int),
        ("keep", c_int),
        ("keep_every", c_int64),
        ("block_bytes", c_size_t),
        ("staging_bytes", c_size_t),
        ("writers", c_int),
        ("threads", c_int),
        ("buffered", c_int),
        ("check_replicas", c_int),
        ("no_sync", c_int),
    ]


class oar_checkpoint_stats(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("step", c_int64),
        ("bytes", c_uint64),
        ("all_bytes", c_uint64),
        ("wanted_bytes", c_uint64),
        ("plan_s", c_double),
        ("write_s", c_double),
        ("commit_s", c_double),
        ("total_s", c_double),
        ("stall_s", c_double),
        ("copy_s", c_double),
        ("sync_s", c_double),
        ("staging_bytes", c_size_t),
    ]


class oar_clip_part(Structure):
    _fields_ = [
        ("param", c_void_p),
        ("cut", c_uint),
        ("uncounted", c_int),
    ]


class oar_cnn_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("channels", c_int64),
        ("image", c_int64),
        ("classes", c_int64),
        ("width", c_int64),
        ("seed", c_uint64),
        ("dtype", c_int),
    ]


class oar_reduce_op(Structure):
    _fields_ = [
        ("kind", c_int),
        ("scalar", c_double),
    ]


class oar_collective(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int),
        ("in", oar_span),
        ("out", oar_span),
        ("in_counts", c_void_p),
        ("out_counts", c_void_p),
        ("op", oar_reduce_op),
        ("root", c_int),
        ("weight", c_double),
        ("ragged", c_int),
        ("awaited", c_int),
        ("tag", c_int64),
        ("stream", c_void_p),
        ("ready", c_void_p),
        ("finished", c_void_p),
        ("canonical", c_int),
    ]


class oar_conv1d_layer_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("stride", c_int),
        ("padding", c_int),
        ("dilation", c_int),
        ("groups", c_int),
        ("no_bias", c_int),
        ("dtype", c_int),
    ]


class oar_conv1d_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("stride", c_int),
        ("padding", c_int),
        ("dilation", c_int),
        ("groups", c_int),
    ]


class oar_conv2d_layer_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("stride", c_int * 2),
        ("padding", c_int * 2),
        ("dilation", c_int * 2),
        ("groups", c_int),
        ("no_bias", c_int),
        ("dtype", c_int),
    ]


class oar_conv2d_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("stride", c_int * 2),
        ("padding", c_int * 2),
        ("dilation", c_int * 2),
        ("groups", c_int),
    ]


class oar_conv_transpose1d_layer_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("stride", c_int),
        ("padding", c_int),
        ("output_padding", c_int),
        ("dilation", c_int),
        ("groups", c_int),
        ("no_bias", c_int),
        ("dtype", c_int),
    ]


class oar_conv_transpose1d_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("stride", c_int),
        ("padding", c_int),
        ("output_padding", c_int),
        ("dilation", c_int),
        ("groups", c_int),
    ]


class oar_conv_transpose2d_layer_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("stride", c_int * 2),
        ("padding", c_int * 2),
        ("output_padding", c_int * 2),
        ("dilation", c_int * 2),
        ("groups", c_int),
        ("no_bias", c_int),
        ("dtype", c_int),
    ]


class oar_conv_transpose2d_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("stride", c_int * 2),
        ("padding", c_int * 2),
        ("output_padding", c_int * 2),
        ("dilation", c_int * 2),
        ("groups", c_int),
    ]


class oar_counter_entry(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("offset", c_size_t),
    ]


class oar_cross_entropy_merge(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("first", c_int64),
        ("classes", c_int64),
        ("arg", c_void_p),
        ("largest", c_void_p),
        ("sums", c_void_p),
    ]


class oar_cross_entropy_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("has_ignore", c_int),
        ("ignore", c_int64),
        ("label_smoothing", c_double),
        ("reduction", c_int),
        ("weight", c_void_p),
    ]


class oar_custom_op(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("backward", c_void_p),
        ("drop", c_void_p),
    ]


class oar_ddp_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("bucket_bytes", c_size_t),
        ("no_broadcast", c_int),
        ("first_bucket_bytes", c_size_t),
        ("keep_order", c_int),
        ("static_graph", c_int),
        ("weighted", c_int),
        ("accumulate", c_int),
        ("hook", c_void_p),
        ("check_every", c_int),
        ("broadcast_buffers", c_int),
        ("canonical", c_int),
    ]


class oar_ddp_stats(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("reduced_bytes", c_uint64),
        ("copied_bytes", c_uint64),
        ("buckets", c_int),
        ("communication_s", c_double),
        ("exposed_s", c_double),
        ("passes", c_int64),
        ("unused", c_int),
    ]


class oar_device_name(Structure):
    _fields_ = [
        ("text", c_char * 24),
    ]


class oar_device_properties(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char * 128),
        ("bus", c_char * 24),
        ("uuid", c_ubyte * 16),
        ("major", c_int),
        ("minor", c_int),
        ("processors", c_int),
        ("driver_version", c_int),
        ("memory_bytes", c_size_t),
        ("free_bytes", c_size_t),
    ]


class oar_device_usage(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("used_bytes", c_size_t),
        ("kept_bytes", c_size_t),
        ("most_bytes", c_size_t),
        ("from_driver", c_uint64),
    ]


class oar_dims(Structure):
    _fields_ = [
        ("count", c_int),
        ("dim", c_int * 8),
    ]


class oar_dtensor(Structure):
    _fields_ = [
        ("local", c_void_p),
        ("spec", c_void_p),
    ]


class oar_dtensor_limits(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("strict", c_int),
        ("most_bytes", c_uint64),
    ]


class oar_dtensor_traffic(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("moves", c_uint64),
        ("bytes", c_uint64),
        ("implicit_moves", c_uint64),
        ("implicit_bytes", c_uint64),
        ("backward_moves", c_uint64),
        ("backward_bytes", c_uint64),
    ]


class oar_dup_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("timeout_ms", c_int64),
        ("stall_ms", c_int64),
        ("loose", c_int),
        ("patient", c_int),
    ]


class oar_embedding_layer_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("deviation", c_double),
        ("dtype", c_int),
        ("has_padding", c_int),
        ("padding", c_int64),
        ("vocabulary", c_int64),
        ("first", c_int64),
    ]


class oar_embedding_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("has_padding", c_int),
        ("padding", c_int64),
        ("vocabulary", c_int64),
        ("first", c_int64),
    ]


class oar_envelope(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("source", c_int),
        ("tag", c_uint64),
        ("bytes", c_size_t),
    ]


class oar_error(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("status", c_int),
        ("rank", c_int),
        ("peer", c_int),
        ("sys_errno", c_int),
        ("pid", c_int64),
        ("sequence", c_uint64),
        ("operation", c_char * 32),
        ("site", c_char * 96),
        ("label", c_char * 64),
        ("host", c_char * 64),
        ("text", c_char * 512),
    ]


class oar_export_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("section", c_char_p),
        ("file_bytes", c_size_t),
        ("has_dtype", c_int),
        ("dtype", c_int),
        ("renames", c_int),
        ("rename", c_void_p),
    ]


class oar_fsdp_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("units", c_void_p),
        ("least_bytes", c_size_t),
        ("ignored", c_void_p),
        ("stage", c_int),
        ("hold", c_int),
        ("keep", c_int),
        ("prefetch", c_int),
        ("replicas", c_void_p),
        ("weighted", c_int),
        ("canonical", c_int),
        ("no_scatter", c_int),
        ("mixed", c_int),
        ("param_dtype", c_int),
        ("reduce_dtype", c_int),
        ("output_dtype", c_int),
        ("host_state", c_int),
    ]


class oar_generation(Structure):
    _fields_ = [
        ("step", c_int64),
        ("complete", c_int),
        ("bytes", c_uint64),
        ("saved_unix_s", c_int64),
        ("ranks", c_int),
        ("keep", c_int),
        ("name", c_char * 64),
        ("why", c_char * 160),
        ("note", c_char * 208),
    ]


class oar_gpt_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("vocabulary", c_int64),
        ("context", c_int64),
        ("width", c_int64),
        ("layers", c_int),
        ("heads", c_int),
        ("hidden", c_int64),
        ("activation", c_int),
        ("tied", c_int),
        ("rotary", c_int),
        ("dropout", c_double),
        ("seed", c_uint64),
        ("dtype", c_int),
        ("recompute", c_int),
        ("kv_heads", c_int),
        ("attention_dropout", c_double),
    ]


class oar_gradcheck_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("step", c_double),
        ("tolerance", c_double),
    ]


class oar_group_norm_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("eps", c_double),
        ("no_affine", c_int),
        ("dtype", c_int),
    ]


class oar_group_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("backend", c_char_p),
        ("name", c_char_p),
        ("timeout_ms", c_int64),
        ("spin_us", c_int64),
        ("small_bytes", c_size_t),
        ("stage_bytes", c_size_t),
        ("eager_bytes", c_size_t),
        ("chunk_bytes", c_size_t),
        ("algorithm", c_char_p),
        ("stall_ms", c_int64),
        ("device", c_void_p),
        ("stream", c_void_p),
        ("nccl_id", c_void_p),
        ("secret", c_char_p),
    ]


class oar_kl_div_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("reduction", c_int),
        ("log_target", c_int),
    ]


class oar_launch_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("timeout_ms", c_int64),
        ("grace_ms", c_int64),
        ("hosts", c_void_p),
        ("lines", c_int),
        ("tags", c_int),
        ("narrate", c_int),
        ("log_dir", c_char_p),
        ("redirects", c_char_p),
        ("tee", c_char_p),
        ("show_ranks", c_char_p),
        ("run_id", c_char_p),
        ("role", c_char_p),
        ("env", c_void_p),
        ("bind", c_char_p),
        ("hostfile", c_char_p),
        ("master_addr", c_char_p),
        ("master_port", c_int),
        ("max_restarts", c_int),
        ("keep_going", c_int),
        ("stall_ms", c_int64),
        ("monitor_ms", c_int64),
        ("sole", c_int),
        ("min_nodes", c_int),
        ("max_nodes", c_int),
        ("node_order", c_int),
        ("endpoint", c_char_p),
        ("join_ms", c_int64),
        ("last_call_ms", c_int64),
        ("lease_ms", c_int64),
        ("max_respawns", c_int),
    ]


class oar_launch_result(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("failed_rank", c_int),
        ("exit_code", c_int),
        ("epoch", c_int),
    ]


class oar_linear_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("no_bias", c_int),
        ("dtype", c_int),
    ]


class oar_live_metric(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char * 48),
        ("value", c_double),
        ("count", c_uint64),
    ]


class oar_live_rank(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rank", c_int),
        ("state", c_int),
        ("pid", c_int64),
        ("host", c_char * 64),
        ("busy", c_int),
        ("waits", c_int),
        ("kind", c_int),
        ("number", c_uint64),
        ("group", c_char * 160),
        ("site", c_char * 96),
        ("label", c_char * 64),
        ("age_ns", c_int64),
        ("missing", c_int),
        ("waits_for", c_int * 8),
        ("operations_s", c_double),
        ("bytes_s", c_double),
        ("waiting", c_double),
        ("operations", c_uint64),
        ("step", c_int64),
        ("steps", c_int64),
        ("step_s", c_double),
        ("memory_bytes", c_uint64),
    ]


class oar_load_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("partial", c_int),
        ("sections", c_char_p),
        ("renames", c_int),
        ("rename", c_void_p),
        ("no_convert", c_int),
        ("no_verify", c_int),
        ("share", c_int),
    ]


class oar_loader_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rank", c_int),
        ("ranks", c_int),
        ("batch", c_int64),
        ("ahead", c_int),
        ("drop_last", c_int),
        ("no_shuffle", c_int),
        ("seed", c_uint64),
        ("device", c_void_p),
    ]


class oar_loss_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("reduction", c_int),
    ]


class oar_lr_schedule(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int),
        ("warmup", c_int64),
        ("steps", c_int64),
        ("every", c_int64),
        ("final", c_double),
    ]


class oar_memory_stats(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("allocations", c_uint64),
        ("live", c_uint64),
        ("live_bytes", c_uint64),
    ]


class oar_mesh_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("ranks", c_int),
        ("rank", c_int),
        ("latency_us", c_void_p),
        ("gb_per_s", c_void_p),
    ]


class oar_message(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("source", c_int),
        ("tag", c_int64),
        ("bytes", c_size_t),
    ]


class oar_module_class(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("self_size", c_size_t),
        ("forward", c_void_p),
        ("destroy", c_void_p),
        ("train", c_void_p),
        ("counters", c_void_p),
    ]


class oar_move(Structure):
    _fields_ = [
        ("sends", c_int),
        ("kind", c_int),
        ("mesh_dim", c_int),
        ("bytes", c_uint64),
        ("most_bytes", c_uint64),
        ("us", c_double),
        ("after", c_void_p),
    ]


class oar_move_plan(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("moves", c_int),
        ("bytes", c_uint64),
        ("most_bytes", c_uint64),
        ("us", c_double),
        ("move", oar_move * 12),
    ]


class oar_optim_description(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_char_p),
        ("lr", c_double),
        ("weight_decay", c_double),
        ("momentum", c_double),
        ("nesterov", c_int),
        ("beta1", c_double),
        ("beta2", c_double),
        ("eps", c_double),
        ("amsgrad", c_int),
        ("master_weights", c_int),
    ]


class oar_optim_entry(Structure):
    _fields_ = [
        ("param", c_void_p),
        ("group", c_int),
        ("steps", c_int64),
        ("state", c_void_p * 4),
    ]


class oar_part_place(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("first", c_int64),
        ("stride", c_int64 * 8),
    ]


class oar_pipeline_batch(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("inputs", c_int),
        ("targets", c_int),
        ("input", c_void_p),
        ("target", c_void_p),
        ("rows", c_void_p),
        ("weight", c_void_p),
        ("scale", c_double),
        ("apart", c_int),
    ]


class oar_pipeline_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("loss", c_void_p),
        ("loss_arg", c_void_p),
        ("equal", c_int),
        ("timeout_ms", c_int64),
        ("dynamic", c_int),
        ("most_bytes", c_uint64),
        ("device", c_void_p),
    ]


class oar_pipeline_result(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("loss", c_double),
        ("weight", c_double),
        ("losses", c_void_p),
    ]


class oar_pipeline_stats(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("steps", c_uint64),
        ("step_s", c_double),
        ("busy_s", c_double),
        ("wait_s", c_double),
        ("bubble", c_double),
        ("sent_bytes", c_uint64),
        ("messages", c_int),
        ("in_flight", c_int),
        ("most_bytes", c_uint64),
        ("simulated_s", c_double),
        ("simulated_bubble", c_double),
    ]


class oar_place(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("whole", oar_shape),
        ("offset", c_int64 * 8),
        ("flat", c_int),
        ("first", c_int64),
    ]


class oar_placement(Structure):
    _fields_ = [
        ("kind", c_int),
        ("dim", c_int),
        ("op", c_int),
        ("sizes", c_void_p),
    ]


class oar_pool2d_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("stride", c_int * 2),
        ("padding", c_int * 2),
    ]


class oar_power_sgd_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rank", c_int),
        ("start", c_int64),
        ("least", c_double),
        ("seed", c_uint64),
        ("no_feedback", c_int),
    ]


class oar_record(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("sequence", c_uint64),
        ("posted_ns", c_int64),
        ("done_ns", c_int64),
        ("count", c_uint64),
        ("kind", c_int),
        ("op", c_int),
        ("dtype", c_int),
        ("root", c_int),
        ("state", c_int),
        ("site", c_char * 96),
        ("label", c_char * 64),
        ("number", c_uint64),
        ("tag", c_int64),
        ("waited", c_int),
        ("ragged", c_int),
    ]


class oar_redistribute_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("most_bytes", c_uint64),
    ]


class oar_reduce_hook(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("arg", c_void_p),
        ("start", c_void_p),
        ("finish", c_void_p),
        ("forget", c_void_p),
    ]


class oar_reducer_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("bucket_bytes", c_size_t),
        ("first_bucket_bytes", c_size_t),
        ("reorder", c_int),
        ("weighted", c_int),
        ("static_graph", c_int),
        ("hook", c_void_p),
        ("names", c_void_p),
        ("canonical", c_int),
    ]


class oar_reducer_stats(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("buckets", c_int),
        ("passes", c_int64),
        ("reduced_bytes", c_uint64),
        ("copied_bytes", c_uint64),
        ("communication_s", c_double),
        ("exposed_s", c_double),
    ]


class oar_rename(Structure):
    _fields_ = [
        ("from", c_char_p),
        ("to", c_char_p),
        ("transpose", c_int),
    ]


class oar_replay_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("warm", c_int),
        ("strict", c_int),
    ]


class oar_rpc_call_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("timeout_ms", c_int64),
        ("no_wait", c_int),
        ("detached", c_int),
        ("parts", c_int),
        ("into_count", c_int),
        ("into", c_void_p),
        ("into_tensors", c_void_p),
    ]


class oar_rpc_function(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("fn", c_void_p),
        ("arg", c_void_p),
        ("manner", c_int),
        ("callers", c_char_p),
        ("message_bytes", c_size_t),
    ]


class oar_rpc_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("threads", c_int),
        ("most_threads", c_int),
        ("timeout_ms", c_int64),
        ("window_calls", c_int),
        ("window_bytes", c_size_t),
        ("message_bytes", c_size_t),
        ("stream_bytes", c_size_t),
        ("functions", c_void_p),
        ("function_count", c_int),
        ("rejoin", c_char_p),
        ("store", c_void_p),
        ("lease_ms", c_int64),
    ]


class oar_rpc_stats(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("calls", c_uint64),
        ("failed", c_uint64),
        ("timed_out", c_uint64),
        ("cancelled", c_uint64),
        ("served", c_uint64),
        ("bytes_out", c_uint64),
        ("bytes_in", c_uint64),
        ("refused", c_uint64),
        ("pending", c_int),
        ("queued", c_int),
        ("running", c_int),
        ("threads", c_int),
        ("most_threads", c_int),
        ("ranks_gone", c_int),
        ("values_owned", c_int),
        ("values_held", c_int),
        ("parts_out", c_uint64),
        ("parts_in", c_uint64),
    ]


class oar_rpc_times(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("count", c_uint64),
        ("errors", c_uint64),
        ("p50_ns", c_int64),
        ("p99_ns", c_int64),
        ("max_ns", c_int64),
        ("bucket", c_uint64 * 128),
    ]


class oar_safetensors_entry(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("dtype_text", c_char_p),
        ("known", c_int),
        ("dtype", c_int),
        ("shape", oar_shape),
        ("offset", c_uint64),
        ("bytes", c_uint64),
    ]


class oar_safetensors_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("header_bytes", c_size_t),
        ("map", c_int),
    ]


class oar_sampler_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("no_shuffle", c_int),
        ("seed", c_uint64),
    ]


class oar_save_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("background", c_int),
        ("lazy", c_int),
        ("no_wait", c_int),
        ("keep", c_int),
        ("has_dtype", c_int),
        ("dtype", c_int),
        ("note", c_char_p),
    ]


class oar_scaler_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("scale", c_double),
        ("interval", c_int64),
    ]


class oar_schedule_report(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("time", c_double),
        ("bubble", c_double),
        ("most_bytes", c_uint64),
        ("most_rank", c_int),
        ("in_flight", c_int),
        ("ascending", c_int),
    ]


class oar_schedule_choice(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int),
        ("chunks", c_int),
        ("fits", c_int),
        ("report", oar_schedule_report),
    ]


class oar_schedule_cost(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("forward", c_void_p),
        ("inputs", c_void_p),
        ("weights", c_void_p),
        ("hop", c_double),
        ("held", c_void_p),
        ("half", c_void_p),
        ("message", c_void_p),
    ]


class oar_schedule_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("chunks", c_int),
        ("ahead", c_int),
        ("forward_only", c_int),
    ]


class oar_sgd_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("lr", c_double),
        ("momentum", c_double),
        ("weight_decay", c_double),
        ("nesterov", c_int),
        ("master_weights", c_int),
    ]


class oar_shard(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("array", c_int),
        ("first", c_size_t),
        ("count", c_size_t),
        ("data", oar_span),
        ("grad", oar_span),
        ("tensor", c_void_p),
    ]


class oar_shards_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("stage", c_int),
        ("hold", c_int),
        ("prefetch", c_int),
        ("no_scatter", c_int),
        ("rows", c_void_p),
        ("frozen", c_void_p),
        ("replicas", c_void_p),
        ("weighted", c_int),
        ("canonical", c_int),
        ("names", c_void_p),
        ("unit_names", c_void_p),
        ("mixed", c_int),
        ("whole_dtype", c_int),
        ("reduce_dtype", c_int),
        ("host_state", c_int),
    ]


class oar_shards_stats(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("units", c_int),
        ("passes", c_int64),
        ("gathers", c_int),
        ("reductions", c_int),
        ("gathered_bytes", c_uint64),
        ("reduced_bytes", c_uint64),
        ("shard_bytes", c_uint64),
        ("whole_bytes", c_uint64),
        ("most_bytes", c_uint64),
        ("exposed_s", c_double),
        ("communication_s", c_double),
    ]


class oar_shrink_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("timeout_ms", c_int64),
        ("any", c_int),
    ]


class oar_spec_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("order", c_void_p),
    ]


class oar_stage(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("index", c_int),
        ("module", c_void_p),
        ("forward", c_void_p),
        ("arg", c_void_p),
        ("inputs", c_int),
        ("outputs", c_int),
        ("input", c_void_p),
        ("recompute", c_int),
    ]


class oar_stage_input(Structure):
    _fields_ = [
        ("stage", c_int),
        ("output", c_int),
    ]


class oar_stall(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("group", c_char * 160),
        ("kind", c_int),
        ("number", c_uint64),
        ("waiting_ms", c_int64),
        ("rank", c_int),
        ("missing", c_int),
        ("missing_count", c_int),
        ("site", c_char * 96),
        ("label", c_char * 64),
        ("text", c_char * 512),
    ]


class oar_step_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("clip", c_double),
        ("scaler", c_void_p),
        ("norm", c_void_p),
    ]


class oar_store_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("secret", c_char_p),
        ("timeout_ms", c_int64),
    ]


class oar_tokens_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("stride", c_int64),
        ("header_bytes", c_size_t),
    ]


class oar_tp_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("sequence", c_int),
    ]


class oar_tp_rule(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("style", c_int),
        ("gather", c_int),
    ]


class oar_trace_event(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int),
        ("process", c_int),
        ("rank", c_int),
        ("thread", c_int64),
        ("start_ns", c_int64),
        ("end_ns", c_int64),
        ("name", c_char_p),
        ("group", c_char_p),
        ("op", c_int),
        ("failed", c_int),
        ("blocking", c_int),
        ("id", c_uint64),
        ("peer", c_int),
        ("number", c_uint64),
        ("bytes", c_uint64),
        ("value", c_double),
    ]


class oar_trace_process(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rank", c_int),
        ("world", c_int),
        ("pid", c_int64),
        ("epoch", c_int64),
        ("host", c_char * 64),
        ("events", c_uint64),
        ("one_in", c_uint),
        ("by_seconds", c_int),
        ("stopped", c_int),
        ("wall_ns", c_int64),
        ("error_ns", c_int64),
        ("gpu_lost", c_uint64),
        ("gpu_error_ns", c_int64),
    ]


class oar_transfer(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("peer", c_int),
        ("tag", c_uint64),
        ("any", c_uint64),
        ("data", c_void_p),
        ("bytes", c_size_t),
        ("synchronous", c_int),
        ("done", c_int),
        ("status", c_int),
        ("source", c_int),
        ("got_tag", c_uint64),
        ("got_bytes", c_size_t),
        ("scratch", c_void_p * 6),
        ("at_most", c_int),
    ]


class oar_window_opts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("timeout_ms", c_int64),
        ("label", c_char_p),
    ]


# What a function returns, and then what it takes.
FUNCTIONS = {
    "oar_abs": (c_void_p, c_void_p, c_void_p,),
    "oar_activation_create": (c_int, c_int, c_void_p,),
    "oar_adam_create": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_adam_create_over": (c_int, c_int, c_void_p, c_void_p, c_void_p,),
    "oar_adamw_create": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_adamw_create_over": (c_int, c_int, c_void_p, c_void_p, c_void_p,),
    "oar_adaptive_avg_pool1d": (c_void_p, c_void_p, c_void_p, c_int,),
    "oar_adaptive_avg_pool1d_create": (c_int, c_int, c_void_p,),
    "oar_adaptive_avg_pool2d": (c_void_p, c_void_p, c_void_p, c_int, c_int,),
    "oar_adaptive_avg_pool2d_create": (c_int, c_int, c_int, c_void_p,),
    "oar_add": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_add_layer_norm": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
        c_void_p, c_double, c_void_p,),
    "oar_algorithm_name": (c_char_p, c_int, c_void_p,),
    "oar_all_gather_bytes_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_size_t, c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_all_gather_v_at": (c_int, c_char_p, c_int, c_void_p, oar_span,
        oar_span, c_void_p, c_void_p, c_void_p,),
    "oar_all_over": (c_void_p, c_void_p, c_void_p, oar_dims, c_int,),
    "oar_all_reduce_at": (c_int, c_char_p, c_int, c_void_p, oar_span,
        oar_reduce_op, c_void_p, c_void_p,),
    "oar_all_reduce_into_at": (c_int, c_char_p, c_int, c_void_p, oar_span,
        oar_span, oar_reduce_op, c_void_p, c_void_p,),
    "oar_all_to_all_v_at": (c_int, c_char_p, c_int, c_void_p, oar_span,
        c_void_p, oar_span, c_void_p, c_void_p, c_void_p,),
    "oar_any_over": (c_void_p, c_void_p, c_void_p, oar_dims, c_int,),
    "oar_arange": (c_void_p, c_void_p, c_int, c_int64, c_double, c_double,),
    "oar_argmax": (c_void_p, c_void_p, c_void_p, c_int, c_int,),
    "oar_argmin": (c_void_p, c_void_p, c_void_p, c_int, c_int,),
    "oar_attention": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
        c_void_p,),
    "oar_attention_create": (c_int, c_int64, c_int, c_uint64, c_void_p,
        c_void_p,),
    "oar_attention_heads": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_attention_keep_heads": (c_int, c_void_p, c_int, c_int,),
    "oar_autopsy_destroy": (None, c_void_p,),
    "oar_autopsy_from_fds": (c_int, c_void_p, c_int, c_void_p,),
    "oar_autopsy_json": (c_int, c_void_p, c_void_p,),
    "oar_autopsy_json_last": (c_int, c_void_p, c_int, c_void_p,),
    "oar_autopsy_note": (c_int, c_void_p, c_int, c_char_p,),
    "oar_autopsy_open": (c_int, c_char_p, c_void_p,),
    "oar_autopsy_save": (c_int, c_void_p, c_char_p,),
    "oar_autopsy_stall": (c_int, c_void_p, c_int64, c_void_p,),
    "oar_autopsy_text": (c_int, c_void_p, c_void_p,),
    "oar_autopsy_wrong": (c_int, c_void_p,),
    "oar_avg_pool2d": (c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p,),
    "oar_avg_pool2d_create": (c_int, c_int, c_int, c_void_p, c_void_p,),
    "oar_backend_available": (c_int, c_char_p, c_void_p,),
    "oar_backend_load": (c_int, c_char_p, c_void_p,),
    "oar_backend_name": (c_char_p, c_int,),
    "oar_backward_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,),
    "oar_backward_from_at": (c_int, c_char_p, c_int, c_void_p, c_int,
        c_void_p, c_void_p,),
    "oar_backward_inputs_at": (c_int, c_char_p, c_int, c_void_p, c_int,
        c_void_p, c_void_p,),
    "oar_backward_weights_at": (c_int, c_char_p, c_int, c_void_p,),
    "oar_barrier_at": (c_int, c_char_p, c_int, c_void_p, c_void_p, c_void_p,),
    "oar_batch_begin": (c_int, c_void_p,),
    "oar_batch_end": (c_int, c_void_p, c_void_p,),
    "oar_batch_is_open": (c_int, c_void_p,),
    "oar_batch_norm": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
        c_void_p, c_void_p, c_int, c_double, c_double,),
    "oar_batch_norm_create": (c_int, c_int, c_int64, c_void_p, c_void_p,),
    "oar_batch_norm_dims": (c_int, c_void_p,),
    "oar_batch_norm_merge_by": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_batch_norm_merge_of": (c_void_p, c_void_p,),
    "oar_batch_norm_merged": (c_void_p, c_void_p, c_void_p, c_void_p,
        c_void_p, c_void_p, c_void_p, c_int, c_double, c_double, c_void_p,),
    "oar_bce_with_logits": (c_void_p, c_void_p, c_void_p, c_void_p,
        c_void_p,),
    "oar_broadcast_at": (c_int, c_char_p, c_int, c_void_p, oar_span, c_int,
        c_void_p, c_void_p,),
    "oar_broadcast_bytes_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p, c_int, c_void_p, c_void_p,),
    "oar_build_text": (c_char_p,),
    "oar_cast": (c_void_p, c_void_p, c_void_p, c_int,),
    "oar_cat": (c_void_p, c_void_p, c_int, c_void_p, c_int,),
    "oar_catalog_close": (None, c_void_p,),
    "oar_catalog_describe": (c_int, c_void_p, c_void_p,),
    "oar_catalog_entry_at": (c_int, c_void_p, c_int64, c_void_p,),
    "oar_catalog_export": (c_int, c_void_p, c_char_p, c_void_p,),
    "oar_catalog_find": (c_int, c_void_p, c_char_p, c_char_p, c_void_p,),
    "oar_catalog_open": (c_int, c_char_p, c_void_p,),
    "oar_catalog_reshard": (c_int, c_void_p, c_char_p, c_int,),
    "oar_catalog_step": (c_int64, c_void_p,),
    "oar_catalog_tensor": (c_void_p, c_void_p, c_char_p, c_char_p,),
    "oar_catalog_tensors": (c_int64, c_void_p,),
    "oar_catalog_value_at": (c_int, c_void_p, c_int64, c_void_p, c_void_p,),
    "oar_catalog_values": (c_int64, c_void_p,),
    "oar_catalog_verify": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_ceil": (c_void_p, c_void_p, c_void_p,),
    "oar_checkpoint_close": (None, c_void_p,),
    "oar_checkpoint_copied": (c_int, c_void_p,),
    "oar_checkpoint_import": (c_int, c_char_p, c_char_p, c_int64, c_void_p,),
    "oar_checkpoint_load_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_int64, c_void_p,),
    "oar_checkpoint_newest_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,),
    "oar_checkpoint_open_at": (c_int, c_char_p, c_int, c_void_p, c_char_p,
        c_void_p, c_void_p,),
    "oar_checkpoint_prune_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p,),
    "oar_checkpoint_read_stats": (c_int, c_void_p, c_void_p,),
    "oar_checkpoint_save_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_int64, c_void_p,),
    "oar_checkpoint_test": (c_int, c_void_p, c_void_p,),
    "oar_checkpoint_wait": (c_int, c_void_p,),
    "oar_chunk": (c_int, c_void_p, c_void_p, c_int, c_int, c_void_p,),
    "oar_clamp": (c_void_p, c_void_p, c_void_p, c_double, c_double,),
    "oar_clear_error": (None,),
    "oar_clip_grad_norm": (c_int, c_int, c_void_p, c_double, c_void_p,),
    "oar_clip_grad_norm_over_at": (c_int, c_char_p, c_int, c_int, c_void_p,
        c_int, c_void_p, c_double, c_void_p,),
    "oar_clip_grad_value": (c_int, c_int, c_void_p, c_double,),
    "oar_cnn_create": (c_int, c_void_p, c_void_p,),
    "oar_coll_name": (c_char_p, c_int,),
    "oar_contiguous": (c_void_p, c_void_p, c_void_p,),
    "oar_conv1d": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
        c_void_p,),
    "oar_conv1d_create": (c_int, c_int64, c_int64, c_int, c_uint64, c_void_p,
        c_void_p,),
    "oar_conv2d": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
        c_void_p,),
    "oar_conv2d_create": (c_int, c_int64, c_int64, c_int, c_int, c_uint64,
        c_void_p, c_void_p,),
    "oar_conv_transpose1d": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
        c_void_p,),
    "oar_conv_transpose1d_create": (c_int, c_int64, c_int64, c_int, c_uint64,
        c_void_p, c_void_p,),
    "oar_conv_transpose2d": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
        c_void_p,),
    "oar_conv_transpose2d_create": (c_int, c_int64, c_int64, c_int, c_int,
        c_uint64, c_void_p, c_void_p,),
    "oar_cos": (c_void_p, c_void_p, c_void_p,),
    "oar_cross_entropy": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_cross_entropy_merged": (c_void_p, c_void_p, c_void_p, c_void_p,
        c_void_p, c_void_p,),
    "oar_cross_entropy_with": (c_void_p, c_void_p, c_void_p, c_void_p,
        c_void_p,),
    "oar_cumsum": (c_void_p, c_void_p, c_void_p, c_int,),
    "oar_dataset_batch": (c_int, c_void_p, c_int64, c_void_p, c_void_p,),
    "oar_dataset_count": (c_int64, c_void_p,),
    "oar_dataset_destroy": (None, c_void_p,),
    "oar_dataset_fields": (c_int, c_void_p,),
    "oar_dataset_identity": (c_int, c_void_p, c_void_p,),
    "oar_dataset_tensors": (c_int, c_int, c_void_p, c_void_p,),
    "oar_dataset_tokens": (c_int, c_char_p, c_int, c_int64, c_int64,
        c_void_p,),
    "oar_dataset_tokens_with": (c_int, c_char_p, c_int, c_int64, c_void_p,
        c_void_p,),
    "oar_ddp_check_replicas_at": (c_int, c_char_p, c_int, c_void_p,),
    "oar_ddp_join_at": (c_int, c_char_p, c_int, c_void_p, c_int, c_void_p,),
    "oar_ddp_no_sync_begin": (c_int, c_void_p,),
    "oar_ddp_no_sync_end": (c_int, c_void_p,),
    "oar_ddp_read_stats": (c_int, c_void_p, c_void_p,),
    "oar_ddp_weigh": (c_int, c_void_p, c_double,),
    "oar_ddp_wrap_at": (c_int, c_char_p, c_int, c_void_p, c_void_p, c_void_p,
        c_void_p,),
    "oar_device_alloc": (c_int, oar_device, c_size_t, c_void_p,),
    "oar_device_available": (c_int, c_int,),
    "oar_device_blas": (c_int, oar_device,),
    "oar_device_copy": (c_int, c_void_p, oar_device, c_void_p, oar_device,
        c_size_t, c_void_p,),
    "oar_device_count": (c_int, c_int,),
    "oar_device_current": (oar_device,),
    "oar_device_describe": (c_int, oar_device, c_void_p,),
    "oar_device_fill": (c_int, oar_span, c_double, c_void_p,),
    "oar_device_free": (None, oar_device, c_void_p, c_void_p,),
    "oar_device_kernels": (c_int, oar_device,),
    "oar_device_memory": (c_int, oar_device, c_void_p,),
    "oar_device_parse": (c_int, c_char_p, c_void_p,),
    "oar_device_set_current": (c_int, oar_device,),
    "oar_device_set_math": (c_int, oar_device, c_int,),
    "oar_device_text": (oar_device_name, oar_device,),
    "oar_device_trim": (c_int, oar_device,),
    "oar_div": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_dlpack_export": (c_int, c_void_p, c_void_p,),
    "oar_dlpack_export_unversioned": (c_int, c_void_p, c_void_p,),
    "oar_dlpack_import": (c_void_p, c_void_p, c_void_p,),
    "oar_dlpack_import_unversioned": (c_void_p, c_void_p, c_void_p,),
    "oar_dropout": (c_void_p, c_void_p, c_void_p, c_double, c_uint64,),
    "oar_dropout_create": (c_int, c_double, c_uint64, c_void_p,),
    "oar_dropout_part": (c_void_p, c_void_p, c_void_p, c_double, c_uint64,
        c_void_p,),
    "oar_dropout_place_by": (c_int, c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_dtensor_abs": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_adaptive_avg_pool1d": (oar_dtensor, c_void_p, oar_dtensor,
        c_int,),
    "oar_dtensor_adaptive_avg_pool2d": (oar_dtensor, c_void_p, oar_dtensor,
        c_int, c_int,),
    "oar_dtensor_add": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,),
    "oar_dtensor_add_layer_norm": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor, c_void_p, c_void_p, c_double, c_void_p,),
    "oar_dtensor_all_over": (oar_dtensor, c_void_p, oar_dtensor, oar_dims,
        c_int,),
    "oar_dtensor_any_over": (oar_dtensor, c_void_p, oar_dtensor, oar_dims,
        c_int,),
    "oar_dtensor_argmax": (oar_dtensor, c_void_p, oar_dtensor, c_int, c_int,),
    "oar_dtensor_argmin": (oar_dtensor, c_void_p, oar_dtensor, c_int, c_int,),
    "oar_dtensor_attention": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,
        oar_dtensor, c_void_p, c_void_p,),
    "oar_dtensor_avg_pool2d": (oar_dtensor, c_void_p, oar_dtensor, c_int,
        c_int, c_void_p,),
    "oar_dtensor_batch_norm": (oar_dtensor, c_void_p, oar_dtensor, c_void_p,
        c_void_p, c_void_p, c_void_p, c_int, c_double, c_double,),
    "oar_dtensor_bce_with_logits": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor, c_void_p, c_void_p, c_void_p,),
    "oar_dtensor_cast": (oar_dtensor, c_void_p, oar_dtensor, c_int,),
    "oar_dtensor_cat": (oar_dtensor, c_void_p, c_int, c_void_p, c_int,),
    "oar_dtensor_ceil": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_chunk": (c_int, c_void_p, oar_dtensor, c_int, c_int,
        c_void_p,),
    "oar_dtensor_clamp": (oar_dtensor, c_void_p, oar_dtensor, c_double,
        c_double,),
    "oar_dtensor_contiguous": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_conv1d": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,
        c_void_p, c_void_p,),
    "oar_dtensor_conv2d": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,
        c_void_p, c_void_p,),
    "oar_dtensor_conv_transpose1d": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor, c_void_p, c_void_p,),
    "oar_dtensor_conv_transpose2d": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor, c_void_p, c_void_p,),
    "oar_dtensor_cos": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_cross_entropy": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor,),
    "oar_dtensor_cross_entropy_with": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor, c_void_p, c_void_p,),
    "oar_dtensor_cumsum": (oar_dtensor, c_void_p, oar_dtensor, c_int,),
    "oar_dtensor_div": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,),
    "oar_dtensor_dropout": (oar_dtensor, c_void_p, oar_dtensor, c_double,
        c_uint64,),
    "oar_dtensor_embedding": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor,),
    "oar_dtensor_embedding_with": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor, c_void_p,),
    "oar_dtensor_eq": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,),
    "oar_dtensor_eq_scalar": (oar_dtensor, c_void_p, oar_dtensor, c_double,),
    "oar_dtensor_erf": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_exp": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_expand": (oar_dtensor, c_void_p, oar_dtensor, oar_shape,),
    "oar_dtensor_expm1": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_flip": (oar_dtensor, c_void_p, oar_dtensor, oar_dims,),
    "oar_dtensor_floor": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_from_lazy": (oar_dtensor, c_void_p, c_void_p, c_void_p,),
    "oar_dtensor_from_local": (oar_dtensor, c_void_p, c_void_p,),
    "oar_dtensor_full": (oar_dtensor, c_void_p, c_int, c_void_p, c_double,),
    "oar_dtensor_ge": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,),
    "oar_dtensor_ge_scalar": (oar_dtensor, c_void_p, oar_dtensor, c_double,),
    "oar_dtensor_gelu": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_gelu_tanh": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_group_norm": (oar_dtensor, c_void_p, oar_dtensor, c_int64,
        c_void_p, c_void_p, c_double,),
    "oar_dtensor_gt": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,),
    "oar_dtensor_gt_scalar": (oar_dtensor, c_void_p, oar_dtensor, c_double,),
    "oar_dtensor_huber_loss": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor, c_double, c_void_p,),
    "oar_dtensor_index_select": (oar_dtensor, c_void_p, oar_dtensor, c_int,
        oar_dtensor,),
    "oar_dtensor_kl_div": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,
        c_void_p,),
    "oar_dtensor_l1_loss": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,
        c_void_p,),
    "oar_dtensor_layer_norm": (oar_dtensor, c_void_p, oar_dtensor, c_void_p,
        c_void_p, c_double,),
    "oar_dtensor_le": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,),
    "oar_dtensor_le_scalar": (oar_dtensor, c_void_p, oar_dtensor, c_double,),
    "oar_dtensor_leaky_relu": (oar_dtensor, c_void_p, oar_dtensor, c_double,),
    "oar_dtensor_linear": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,
        c_void_p,),
    "oar_dtensor_linear_act": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor, c_void_p, c_int,),
    "oar_dtensor_linear_cross_entropy": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor, oar_dtensor, c_void_p,),
    "oar_dtensor_log": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_log1p": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_log_softmax": (oar_dtensor, c_void_p, oar_dtensor, c_int,),
    "oar_dtensor_logical_and": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor,),
    "oar_dtensor_logical_not": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_logical_or": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor,),
    "oar_dtensor_logical_xor": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor,),
    "oar_dtensor_lt": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,),
    "oar_dtensor_lt_scalar": (oar_dtensor, c_void_p, oar_dtensor, c_double,),
    "oar_dtensor_masked_fill": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor, c_double,),
    "oar_dtensor_matmul": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,),
    "oar_dtensor_max_over": (oar_dtensor, c_void_p, oar_dtensor, oar_dims,
        c_int,),
    "oar_dtensor_max_pool2d": (oar_dtensor, c_void_p, oar_dtensor, c_int,
        c_int, c_void_p,),
    "oar_dtensor_max_with_index": (c_int, c_void_p, oar_dtensor, c_int, c_int,
        c_void_p, c_void_p,),
    "oar_dtensor_maximum": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,),
    "oar_dtensor_maximum_scalar": (oar_dtensor, c_void_p, oar_dtensor,
        c_double,),
    "oar_dtensor_mean": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_mean_over": (oar_dtensor, c_void_p, oar_dtensor, oar_dims,
        c_int,),
    "oar_dtensor_min_over": (oar_dtensor, c_void_p, oar_dtensor, oar_dims,
        c_int,),
    "oar_dtensor_min_with_index": (c_int, c_void_p, oar_dtensor, c_int, c_int,
        c_void_p, c_void_p,),
    "oar_dtensor_minimum": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,),
    "oar_dtensor_minimum_scalar": (oar_dtensor, c_void_p, oar_dtensor,
        c_double,),
    "oar_dtensor_mse": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,),
    "oar_dtensor_mse_with": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,
        c_void_p,),
    "oar_dtensor_mul": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,),
    "oar_dtensor_narrow": (oar_dtensor, c_void_p, oar_dtensor, c_int, c_int64,
        c_int64,),
    "oar_dtensor_ne": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,),
    "oar_dtensor_ne_scalar": (oar_dtensor, c_void_p, oar_dtensor, c_double,),
    "oar_dtensor_neg": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_normal": (oar_dtensor, c_void_p, c_int, c_void_p, c_uint64,
        c_double, c_double,),
    "oar_dtensor_ones": (oar_dtensor, c_void_p, c_int, c_void_p,),
    "oar_dtensor_permute": (oar_dtensor, c_void_p, oar_dtensor, oar_dims,),
    "oar_dtensor_pow": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,),
    "oar_dtensor_power": (oar_dtensor, c_void_p, oar_dtensor, c_double,),
    "oar_dtensor_prod_over": (oar_dtensor, c_void_p, oar_dtensor, oar_dims,
        c_int,),
    "oar_dtensor_read_traffic": (c_int, c_void_p, c_char_p, c_void_p,),
    "oar_dtensor_relu": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_reshape": (oar_dtensor, c_void_p, oar_dtensor, oar_shape,),
    "oar_dtensor_rms_norm": (oar_dtensor, c_void_p, oar_dtensor, c_void_p,
        c_double,),
    "oar_dtensor_rotary": (oar_dtensor, c_void_p, oar_dtensor, c_int64,
        c_double,),
    "oar_dtensor_round": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_rsqrt": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_scale": (oar_dtensor, c_void_p, oar_dtensor, c_double,),
    "oar_dtensor_scatter_add": (oar_dtensor, c_void_p, oar_dtensor, c_int,
        oar_dtensor, oar_dtensor,),
    "oar_dtensor_scatter_at": (oar_dtensor, c_char_p, c_int, c_void_p,
        c_void_p, c_int, c_void_p, c_int,),
    "oar_dtensor_select": (oar_dtensor, c_void_p, oar_dtensor, c_int,
        c_int64,),
    "oar_dtensor_set_limits": (c_int, c_void_p, c_void_p,),
    "oar_dtensor_set_scope": (c_char_p, c_void_p, c_char_p,),
    "oar_dtensor_shift": (oar_dtensor, c_void_p, oar_dtensor, c_double,),
    "oar_dtensor_sigmoid": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_sign": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_silu": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_sin": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_slice": (oar_dtensor, c_void_p, oar_dtensor, c_int, c_int64,
        c_int64, c_int64,),
    "oar_dtensor_smooth_l1_loss": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor, c_double, c_void_p,),
    "oar_dtensor_softmax": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_softmax_over": (oar_dtensor, c_void_p, oar_dtensor, c_int,),
    "oar_dtensor_softplus": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_sort": (c_int, c_void_p, oar_dtensor, c_int, c_int, c_void_p,
        c_void_p,),
    "oar_dtensor_split": (c_int, c_void_p, oar_dtensor, c_int, c_int,
        c_void_p, c_void_p,),
    "oar_dtensor_sqrt": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_squeeze": (oar_dtensor, c_void_p, oar_dtensor, c_int,),
    "oar_dtensor_stack": (oar_dtensor, c_void_p, c_int, c_void_p, c_int,),
    "oar_dtensor_sub": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,),
    "oar_dtensor_sum": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_sum_over": (oar_dtensor, c_void_p, oar_dtensor, oar_dims,
        c_int,),
    "oar_dtensor_take_along": (oar_dtensor, c_void_p, oar_dtensor, c_int,
        oar_dtensor,),
    "oar_dtensor_tanh": (oar_dtensor, c_void_p, oar_dtensor,),
    "oar_dtensor_text": (c_size_t, oar_dtensor, c_char_p, c_size_t,),
    "oar_dtensor_to_local": (c_void_p, c_void_p, oar_dtensor, c_int,),
    "oar_dtensor_topk": (c_int, c_void_p, oar_dtensor, c_int64, c_void_p,
        c_void_p,),
    "oar_dtensor_transpose": (oar_dtensor, c_void_p, oar_dtensor, c_int,
        c_int,),
    "oar_dtensor_tril": (oar_dtensor, c_void_p, oar_dtensor, c_int64,),
    "oar_dtensor_triu": (oar_dtensor, c_void_p, oar_dtensor, c_int64,),
    "oar_dtensor_uniform": (oar_dtensor, c_void_p, c_int, c_void_p, c_uint64,
        c_double, c_double,),
    "oar_dtensor_unsqueeze": (oar_dtensor, c_void_p, oar_dtensor, c_int,),
    "oar_dtensor_var_over": (oar_dtensor, c_void_p, oar_dtensor, oar_dims,
        c_int, c_int,),
    "oar_dtensor_where": (oar_dtensor, c_void_p, oar_dtensor, oar_dtensor,
        oar_dtensor,),
    "oar_dtensor_where_scalar": (oar_dtensor, c_void_p, oar_dtensor,
        oar_dtensor, c_double,),
    "oar_dtensor_whole_at": (c_void_p, c_char_p, c_int, c_void_p, oar_dtensor,
        c_int,),
    "oar_dtensor_zeros": (oar_dtensor, c_void_p, c_int, c_void_p,),
    "oar_dtype_name": (c_char_p, c_int,),
    "oar_dtype_parse": (c_int, c_char_p, c_void_p,),
    "oar_dtype_size": (c_size_t, c_int,),
    "oar_embedding": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_embedding_create": (c_int, c_int64, c_int64, c_uint64, c_double,
        c_int, c_void_p,),
    "oar_embedding_create_with": (c_int, c_int64, c_int64, c_uint64, c_void_p,
        c_void_p,),
    "oar_embedding_describe": (c_int, c_void_p, c_void_p,),
    "oar_embedding_with": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_empty": (c_void_p, c_void_p, c_int, oar_shape,),
    "oar_empty_on": (c_void_p, c_void_p, oar_device, c_int, oar_shape,),
    "oar_eq": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_eq_scalar": (c_void_p, c_void_p, c_void_p, c_double,),
    "oar_erf": (c_void_p, c_void_p, c_void_p,),
    "oar_event_create": (c_int, oar_device, c_int, c_void_p,),
    "oar_event_destroy": (None, oar_device, c_void_p,),
    "oar_event_elapsed": (c_int, oar_device, c_void_p, c_void_p, c_void_p,),
    "oar_event_query": (c_int, oar_device, c_void_p, c_void_p,),
    "oar_event_record": (c_int, oar_device, c_void_p, c_void_p,),
    "oar_event_synchronize": (c_int, oar_device, c_void_p,),
    "oar_exp": (c_void_p, c_void_p, c_void_p,),
    "oar_expand": (c_void_p, c_void_p, c_void_p, oar_shape,),
    "oar_explain": (c_int, c_void_p, c_void_p, c_int, c_void_p,),
    "oar_explain_text": (c_size_t, c_void_p, c_void_p, c_int, c_char_p,
        c_size_t,),
    "oar_expm1": (c_void_p, c_void_p, c_void_p,),
    "oar_eye": (c_void_p, c_void_p, c_int, c_int64, c_int64,),
    "oar_flatten_create": (c_int, c_int, c_void_p,),
    "oar_flip": (c_void_p, c_void_p, c_void_p, oar_dims,),
    "oar_floor": (c_void_p, c_void_p, c_void_p,),
    "oar_forward_at": (c_void_p, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p,),
    "oar_free": (None, c_void_p,),
    "oar_from_data": (c_void_p, c_void_p, c_int, oar_shape, c_void_p,),
    "oar_fsdp_clip_grad_norm_at": (c_int, c_char_p, c_int, c_void_p, c_double,
        c_void_p,),
    "oar_fsdp_join_at": (c_int, c_char_p, c_int, c_void_p, c_int, c_void_p,),
    "oar_fsdp_keep_state_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,),
    "oar_fsdp_load_at": (c_int, c_char_p, c_int, c_void_p, c_void_p, c_int,),
    "oar_fsdp_no_sync_begin": (c_int, c_void_p,),
    "oar_fsdp_no_sync_end": (c_int, c_void_p,),
    "oar_fsdp_param_index": (c_int, c_void_p, c_int,),
    "oar_fsdp_params": (c_void_p, c_void_p, c_void_p,),
    "oar_fsdp_read_param_at": (c_int, c_char_p, c_int, c_void_p, c_char_p,
        c_int, c_void_p,),
    "oar_fsdp_regroup_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p,),
    "oar_fsdp_reshard_at": (c_int, c_char_p, c_int, c_void_p, c_char_p,),
    "oar_fsdp_scaler_step_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p, c_void_p,),
    "oar_fsdp_shards": (c_void_p, c_void_p,),
    "oar_fsdp_unit_name": (c_char_p, c_void_p, c_int,),
    "oar_fsdp_units": (c_int, c_void_p,),
    "oar_fsdp_unshard_at": (c_int, c_char_p, c_int, c_void_p, c_char_p,),
    "oar_fsdp_wrap_at": (c_int, c_char_p, c_int, c_void_p, c_void_p, c_void_p,
        c_void_p,),
    "oar_fsdp_write_param_at": (c_int, c_char_p, c_int, c_void_p, c_char_p,
        c_int, c_void_p,),
    "oar_full": (c_void_p, c_void_p, c_int, oar_shape, c_double,),
    "oar_future_cancel": (c_int, c_void_p,),
    "oar_future_next": (c_int, c_void_p, c_void_p,),
    "oar_future_release": (None, c_void_p,),
    "oar_future_test": (c_int, c_void_p, c_void_p,),
    "oar_future_then": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_future_wait": (c_int, c_void_p, c_void_p,),
    "oar_future_wait_any": (c_int, c_int, c_void_p, c_void_p,),
    "oar_gather_at": (c_int, c_char_p, c_int, c_void_p, oar_span, oar_span,
        c_int, c_void_p, c_void_p,),
    "oar_gather_bytes_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_size_t, c_int, c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_gather_v_at": (c_int, c_char_p, c_int, c_void_p, oar_span, oar_span,
        c_void_p, c_int, c_void_p, c_void_p,),
    "oar_ge": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_ge_scalar": (c_void_p, c_void_p, c_void_p, c_double,),
    "oar_gelu": (c_void_p, c_void_p, c_void_p,),
    "oar_gelu_tanh": (c_void_p, c_void_p, c_void_p,),
    "oar_generations": (c_int, c_char_p, c_void_p, c_void_p,),
    "oar_gpt_create": (c_int, c_void_p, c_void_p,),
    "oar_gpt_describe": (c_int, c_void_p, c_void_p,),
    "oar_gpt_from_hf": (c_int, c_char_p, c_int, c_void_p, c_void_p,),
    "oar_gpt_from_llmc": (c_int, c_char_p, c_int, c_int, c_void_p, c_void_p,),
    "oar_gpt_loss": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
        c_void_p,),
    "oar_gpt_stage_create": (c_int, c_void_p, c_int, c_int, c_void_p,),
    "oar_gpt_to_hf": (c_int, c_void_p, c_char_p,),
    "oar_gpt_to_llmc": (c_int, c_void_p, c_char_p,),
    "oar_gpu_all_reduce_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        oar_reduce_op, c_void_p, c_void_p,),
    "oar_gpu_broadcast_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_int, c_void_p, c_void_p,),
    "oar_gpu_share_choices": (c_int, c_void_p, c_void_p,),
    "oar_grad_scale": (c_int, c_int, c_void_p, c_double,),
    "oar_grad_squares": (c_int, c_int, c_void_p, c_void_p,),
    "oar_gradcheck": (c_int, c_void_p, c_void_p, c_int, c_void_p, c_void_p,),
    "oar_group_abort": (c_int, c_void_p, c_char_p,),
    "oar_group_backend": (c_char_p, c_void_p,),
    "oar_group_create": (c_int, c_void_p, c_int, c_int, c_void_p, c_void_p,),
    "oar_group_create_tcp": (c_int, c_char_p, c_int, c_int, c_void_p,
        c_void_p,),
    "oar_group_destroy": (None, c_void_p,),
    "oar_group_dup_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,),
    "oar_group_dup_with_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p,),
    "oar_group_fault": (c_int, c_void_p, c_void_p,),
    "oar_group_from_env": (c_int, c_void_p, c_void_p,),
    "oar_group_from_world": (c_int, c_void_p, c_int,),
    "oar_group_host": (c_int, c_void_p, c_int,),
    "oar_group_name": (c_char_p, c_void_p,),
    "oar_group_norm": (c_void_p, c_void_p, c_void_p, c_int64, c_void_p,
        c_void_p, c_double,),
    "oar_group_norm_create": (c_int, c_int64, c_int64, c_void_p, c_void_p,),
    "oar_group_on_gone": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_group_overlaps": (c_int, c_void_p,),
    "oar_group_rank": (c_int, c_void_p,),
    "oar_group_shrink": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_group_size": (c_int, c_void_p,),
    "oar_group_split_at": (c_int, c_char_p, c_int, c_void_p, c_int, c_int,
        c_void_p,),
    "oar_group_subset": (c_int, c_void_p, c_int, c_void_p, c_void_p,),
    "oar_group_to_world": (c_int, c_void_p, c_int,),
    "oar_group_translate": (c_int, c_void_p, c_int, c_void_p,),
    "oar_gt": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_gt_scalar": (c_void_p, c_void_p, c_void_p, c_double,),
    "oar_hook_half": (c_int, c_int, c_void_p,),
    "oar_hook_power_sgd": (c_int, c_int, c_void_p, c_void_p, c_void_p,),
    "oar_hook_power_sgd_for": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_hook_remove": (None, c_void_p,),
    "oar_huber_loss": (c_void_p, c_void_p, c_void_p, c_void_p, c_double,
        c_void_p,),
    "oar_hybrid_create": (c_int, c_int, c_int, c_char_p, c_void_p, c_void_p,
        c_void_p,),
    "oar_index_select": (c_void_p, c_void_p, c_void_p, c_int, c_void_p,),
    "oar_kl_div": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_l1_loss": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_last_error": (c_void_p,),
    "oar_last_error_text": (c_char_p,),
    "oar_launch": (c_int, c_int, c_void_p, c_void_p, c_void_p,),
    "oar_launch_fn": (c_int, c_int, c_void_p, c_void_p, c_void_p, c_void_p,
        c_void_p,),
    "oar_layer_kind_of": (c_int, c_void_p,),
    "oar_layer_norm": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
        c_double,),
    "oar_layer_norm_create": (c_int, c_int64, c_double, c_int, c_void_p,),
    "oar_lazy": (c_int, c_int,),
    "oar_le": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_le_scalar": (c_void_p, c_void_p, c_void_p, c_double,),
    "oar_leaky_relu": (c_void_p, c_void_p, c_void_p, c_double,),
    "oar_leaky_relu_create": (c_int, c_double, c_void_p,),
    "oar_linear": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_linear_act": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
        c_int,),
    "oar_linear_create": (c_int, c_int64, c_int64, c_uint64, c_void_p,
        c_void_p,),
    "oar_linear_cross_entropy": (c_void_p, c_void_p, c_void_p, c_void_p,
        c_void_p, c_void_p,),
    "oar_live_autopsy": (c_void_p, c_void_p,),
    "oar_live_close": (None, c_void_p,),
    "oar_live_look": (c_int, c_void_p,),
    "oar_live_metric_at": (c_int, c_void_p, c_int, c_int, c_void_p,),
    "oar_live_metrics": (c_int, c_void_p, c_int,),
    "oar_live_open": (c_int, c_char_p, c_void_p,),
    "oar_live_rank_at": (c_int, c_void_p, c_int, c_void_p,),
    "oar_live_ranks": (c_int, c_void_p,),
    "oar_live_run": (c_char_p, c_void_p,),
    "oar_live_verdict": (c_char_p, c_void_p,),
    "oar_loader_batches": (c_int64, c_void_p,),
    "oar_loader_create": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_loader_dataset": (c_void_p, c_void_p,),
    "oar_loader_describe": (c_int, c_void_p, c_void_p,),
    "oar_loader_destroy": (None, c_void_p,),
    "oar_loader_next": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_loader_position": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_loader_seek": (c_int, c_void_p, c_uint64, c_int64,),
    "oar_loader_start": (c_int, c_void_p, c_uint64, c_int64,),
    "oar_log": (c_void_p, c_void_p, c_void_p,),
    "oar_log1p": (c_void_p, c_void_p, c_void_p,),
    "oar_log_softmax": (c_void_p, c_void_p, c_void_p, c_int,),
    "oar_log_to": (None, c_void_p, c_void_p, c_int,),
    "oar_logical_and": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_logical_not": (c_void_p, c_void_p, c_void_p,),
    "oar_logical_or": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_logical_xor": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_lr_schedule_at": (c_double, c_void_p, c_int64,),
    "oar_lt": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_lt_scalar": (c_void_p, c_void_p, c_void_p, c_double,),
    "oar_masked_fill": (c_void_p, c_void_p, c_void_p, c_void_p, c_double,),
    "oar_matmul": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_max_over": (c_void_p, c_void_p, c_void_p, oar_dims, c_int,),
    "oar_max_pool2d": (c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p,),
    "oar_max_pool2d_create": (c_int, c_int, c_int, c_void_p, c_void_p,),
    "oar_max_with_index": (c_int, c_void_p, c_void_p, c_int, c_int, c_void_p,
        c_void_p,),
    "oar_maximum": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_maximum_scalar": (c_void_p, c_void_p, c_void_p, c_double,),
    "oar_mean": (c_void_p, c_void_p, c_void_p,),
    "oar_mean_over": (c_void_p, c_void_p, c_void_p, oar_dims, c_int,),
    "oar_memory_fail_after": (None, c_uint64,),
    "oar_memory_read": (c_int, c_void_p,),
    "oar_mesh_along": (c_int, c_void_p, c_int, c_int, c_void_p,),
    "oar_mesh_coordinates": (c_int, c_void_p, c_int, c_void_p,),
    "oar_mesh_create_at": (c_int, c_char_p, c_int, c_void_p, c_int, c_void_p,
        c_void_p, c_void_p, c_void_p,),
    "oar_mesh_create_by_host_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p,),
    "oar_mesh_dim": (c_int, c_void_p, c_char_p,),
    "oar_mesh_dims": (c_int, c_void_p,),
    "oar_mesh_flatten_at": (c_int, c_char_p, c_int, c_void_p, c_char_p,
        c_char_p, c_void_p,),
    "oar_mesh_group": (c_void_p, c_void_p, c_int,),
    "oar_mesh_name": (c_char_p, c_void_p, c_int,),
    "oar_mesh_rank": (c_int, c_void_p,),
    "oar_mesh_rank_at": (c_int, c_void_p, c_int, c_void_p,),
    "oar_mesh_release": (None, c_void_p,),
    "oar_mesh_retain": (c_void_p, c_void_p,),
    "oar_mesh_row": (c_int, c_void_p, c_int, c_int, c_void_p,),
    "oar_mesh_rows": (c_int, c_void_p, c_int,),
    "oar_mesh_size": (c_int, c_void_p, c_int,),
    "oar_mesh_slice_at": (c_int, c_char_p, c_int, c_void_p, c_char_p,
        c_void_p,),
    "oar_metric": (None, c_char_p, c_double,),
    "oar_min_over": (c_void_p, c_void_p, c_void_p, oar_dims, c_int,),
    "oar_min_with_index": (c_int, c_void_p, c_void_p, c_int, c_int, c_void_p,
        c_void_p,),
    "oar_minimum": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_minimum_scalar": (c_void_p, c_void_p, c_void_p, c_double,),
    "oar_module_add_buffer": (c_int, c_void_p, c_char_p, c_void_p,),
    "oar_module_add_child": (c_int, c_void_p, c_char_p, c_void_p,),
    "oar_module_add_param": (c_int, c_void_p, c_char_p, c_void_p,),
    "oar_module_buffer": (c_void_p, c_void_p, c_int,),
    "oar_module_buffer_name": (c_int, c_void_p, c_int, c_char_p, c_size_t,),
    "oar_module_buffers": (c_int, c_void_p,),
    "oar_module_cast": (c_int, c_void_p, c_int, c_int,),
    "oar_module_child": (c_void_p, c_void_p, c_int,),
    "oar_module_child_name": (c_char_p, c_void_p, c_int,),
    "oar_module_children": (c_int, c_void_p,),
    "oar_module_counter": (c_void_p, c_void_p, c_int,),
    "oar_module_counter_name": (c_int, c_void_p, c_int, c_char_p, c_size_t,),
    "oar_module_counters": (c_int, c_void_p,),
    "oar_module_create": (c_int, c_void_p, c_void_p,),
    "oar_module_find": (c_void_p, c_void_p, c_char_p,),
    "oar_module_find_counter": (c_void_p, c_void_p, c_char_p,),
    "oar_module_find_module": (c_void_p, c_void_p, c_char_p,),
    "oar_module_freeze": (c_int, c_void_p, c_int,),
    "oar_module_is": (c_int, c_void_p, c_void_p,),
    "oar_module_load": (c_int, c_void_p, c_void_p, c_int,),
    "oar_module_map": (c_int, c_void_p, c_int, c_void_p, c_void_p, c_void_p,),
    "oar_module_name": (c_char_p, c_void_p,),
    "oar_module_on": (c_int, c_void_p, c_int, c_void_p, c_void_p, c_void_p,),
    "oar_module_param": (c_void_p, c_void_p, c_int,),
    "oar_module_param_name": (c_int, c_void_p, c_int, c_char_p, c_size_t,),
    "oar_module_params": (c_int, c_void_p,),
    "oar_module_release": (None, c_void_p,),
    "oar_module_replace": (c_int, c_void_p, c_char_p, c_void_p,),
    "oar_module_replace_param": (c_int, c_void_p, c_char_p, c_void_p,),
    "oar_module_retain": (c_void_p, c_void_p,),
    "oar_module_self": (c_void_p, c_void_p,),
    "oar_module_to": (c_int, c_void_p, oar_device,),
    "oar_module_train": (None, c_void_p, c_int,),
    "oar_module_training": (c_int, c_void_p,),
    "oar_monitored_barrier_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,),
    "oar_mse": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_mse_with": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_mul": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_narrow": (c_void_p, c_void_p, c_void_p, c_int, c_int64, c_int64,),
    "oar_nccl_available": (c_int,),
    "oar_nccl_communicator": (c_void_p, c_void_p,),
    "oar_nccl_create": (c_int, c_int, c_int, c_char_p, c_void_p, c_void_p,
        c_void_p,),
    "oar_nccl_dtype": (c_int, c_int, c_void_p,),
    "oar_nccl_op": (c_int, c_int, c_int, c_void_p,),
    "oar_nccl_stream": (c_void_p, c_void_p,),
    "oar_nccl_synchronize": (c_int, c_void_p,),
    "oar_nccl_unique_id": (c_int, c_void_p,),
    "oar_nccl_version": (c_int, c_void_p,),
    "oar_ne": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_ne_scalar": (c_void_p, c_void_p, c_void_p, c_double,),
    "oar_neg": (c_void_p, c_void_p, c_void_p,),
    "oar_norm_eps": (c_double, c_void_p,),
    "oar_normal": (c_void_p, c_void_p, c_int, oar_shape, c_uint64, c_double,
        c_double,),
    "oar_ones": (c_void_p, c_void_p, c_int, oar_shape,),
    "oar_optim_add_group": (c_int, c_void_p, c_int, c_void_p, c_double,
        c_double,),
    "oar_optim_after_step": (c_int, c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_optim_cast": (c_int, c_void_p, c_void_p, c_int, c_int,),
    "oar_optim_describe": (c_int, c_void_p, c_void_p,),
    "oar_optim_destroy": (None, c_void_p,),
    "oar_optim_group_scales": (c_int, c_void_p, c_int, c_void_p, c_void_p,),
    "oar_optim_groups": (c_int, c_void_p,),
    "oar_optim_lr": (c_double, c_void_p,),
    "oar_optim_move": (c_int, c_void_p, c_int, c_int64, oar_span,),
    "oar_optim_on_move": (c_int, c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_optim_on_step": (c_int, c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_optim_param": (c_void_p, c_void_p, c_int,),
    "oar_optim_param_group": (c_int, c_void_p, c_int, c_void_p,),
    "oar_optim_param_steps": (c_int64, c_void_p, c_int,),
    "oar_optim_params": (c_int, c_void_p,),
    "oar_optim_replace": (c_int, c_void_p, c_int, c_void_p,),
    "oar_optim_set_lr": (c_int, c_void_p, c_double,),
    "oar_optim_set_param_steps": (c_int, c_void_p, c_int, c_int64,),
    "oar_optim_set_steps": (c_int, c_void_p, c_int64,),
    "oar_optim_state": (c_void_p, c_void_p, c_int, c_int,),
    "oar_optim_state_name": (c_char_p, c_void_p, c_int,),
    "oar_optim_step": (c_int, c_void_p,),
    "oar_optim_step_with": (c_int, c_void_p, c_void_p,),
    "oar_optim_steps": (c_int64, c_void_p,),
    "oar_optim_zero_grad": (None, c_void_p,),
    "oar_opts_init": (None, c_void_p, c_size_t,),
    "oar_permute": (c_void_p, c_void_p, c_void_p, oar_dims,),
    "oar_pinned_alloc": (c_int, c_size_t, c_void_p,),
    "oar_pinned_free": (None, c_void_p,),
    "oar_pipeline_cost_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,),
    "oar_pipeline_create_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_int, c_void_p, c_void_p, c_void_p,),
    "oar_pipeline_destroy": (None, c_void_p,),
    "oar_pipeline_draw_at": (c_int, c_char_p, c_int, c_void_p, c_int,
        c_void_p,),
    "oar_pipeline_eval_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p, c_void_p,),
    "oar_pipeline_read_stats": (c_int, c_void_p, c_void_p,),
    "oar_pipeline_step_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p,),
    "oar_pipeline_tie_at": (c_int, c_char_p, c_int, c_void_p, c_char_p,
        c_void_p,),
    "oar_place_of_rank": (c_int, oar_shape, c_int, c_int, c_int, c_void_p,
        c_void_p,),
    "oar_pow": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_power": (c_void_p, c_void_p, c_void_p, c_double,),
    "oar_probe_at": (c_int, c_char_p, c_int, c_void_p, c_int, c_int64,
        c_void_p, c_void_p,),
    "oar_probe_wait_at": (c_int, c_char_p, c_int, c_void_p, c_int, c_int64,
        c_int64, c_void_p,),
    "oar_prod_over": (c_void_p, c_void_p, c_void_p, oar_dims, c_int,),
    "oar_recompute_at": (c_void_p, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p,),
    "oar_record_op": (c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_void_p,
        c_void_p,),
    "oar_recorder_read": (c_int, c_void_p, c_int, c_int, c_void_p,),
    "oar_recorder_read_file": (c_int, c_char_p, c_int, c_void_p,),
    "oar_recv_at": (c_int, c_char_p, c_int, c_void_p, oar_span, c_int,
        c_int64, c_void_p, c_void_p,),
    "oar_redistribute_at": (oar_dtensor, c_char_p, c_int, c_void_p,
        oar_dtensor, c_void_p, c_void_p,),
    "oar_reduce_at": (c_int, c_char_p, c_int, c_void_p, oar_span, oar_span,
        oar_reduce_op, c_int, c_void_p, c_void_p,),
    "oar_reduce_op_check": (c_int, oar_reduce_op, c_int,),
    "oar_reduce_op_name": (c_char_p, c_int,),
    "oar_reduce_scatter_v_at": (c_int, c_char_p, c_int, c_void_p, oar_span,
        c_void_p, oar_span, oar_reduce_op, c_void_p, c_void_p,),
    "oar_reducer_create_at": (c_int, c_char_p, c_int, c_void_p, c_int,
        c_void_p, c_void_p, c_void_p,),
    "oar_reducer_destroy": (None, c_void_p,),
    "oar_reducer_read_stats": (c_int, c_void_p, c_void_p,),
    "oar_reducer_ready_at": (c_int, c_char_p, c_int, c_void_p, c_int,),
    "oar_reducer_span": (oar_span, c_void_p, c_int,),
    "oar_reducer_used": (c_int, c_void_p, c_int,),
    "oar_reducer_wait_at": (c_int, c_char_p, c_int, c_void_p,),
    "oar_reducer_weigh": (c_int, c_void_p, c_double,),
    "oar_relu": (c_void_p, c_void_p, c_void_p,),
    "oar_relu_create": (c_int, c_void_p,),
    "oar_replay_create": (c_int, oar_device, c_void_p, c_void_p, c_void_p,
        c_void_p,),
    "oar_replay_cut": (c_int, c_void_p, c_void_p,),
    "oar_replay_cut_with": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_replay_destroy": (None, c_void_p,),
    "oar_replay_graphs": (c_int, c_void_p,),
    "oar_replay_run": (c_int, c_void_p,),
    "oar_reshape": (c_void_p, c_void_p, c_void_p, oar_shape,),
    "oar_rms_norm": (c_void_p, c_void_p, c_void_p, c_void_p, c_double,),
    "oar_rms_norm_create": (c_int, c_int64, c_double, c_int, c_void_p,),
    "oar_rotary": (c_void_p, c_void_p, c_void_p, c_int64, c_double,),
    "oar_round": (c_void_p, c_void_p, c_void_p,),
    "oar_rpc_answer": (None, c_void_p, c_int,),
    "oar_rpc_args": (c_void_p, c_void_p,),
    "oar_rpc_async_at": (c_int, c_char_p, c_int, c_void_p, c_int, c_char_p,
        c_void_p, c_void_p, c_void_p,),
    "oar_rpc_await": (c_int, c_void_p, c_int, c_int64,),
    "oar_rpc_bucket_ns": (c_int64, c_int,),
    "oar_rpc_caller": (c_int, c_void_p,),
    "oar_rpc_cancelled": (c_int, c_void_p,),
    "oar_rpc_create_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p,),
    "oar_rpc_destroy": (None, c_void_p,),
    "oar_rpc_fail_at": (c_int, c_char_p, c_int, c_void_p, c_int, c_char_p,),
    "oar_rpc_find": (c_int, c_void_p, c_char_p,),
    "oar_rpc_get_bytes": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_rpc_get_f64": (c_int, c_void_p, c_void_p,),
    "oar_rpc_get_i64": (c_int, c_void_p, c_void_p,),
    "oar_rpc_get_into": (c_int, c_void_p, oar_span,),
    "oar_rpc_get_rref": (c_int, c_void_p, c_void_p,),
    "oar_rpc_get_span": (c_int, c_void_p, c_void_p,),
    "oar_rpc_get_tensor": (c_int, c_void_p, c_void_p,),
    "oar_rpc_get_tensor_on": (c_int, c_void_p, oar_device, c_void_p,),
    "oar_rpc_get_text": (c_int, c_void_p, c_void_p,),
    "oar_rpc_incarnation": (c_int, c_void_p, c_int,),
    "oar_rpc_keep": (c_int, c_void_p,),
    "oar_rpc_left_ms": (c_int64, c_void_p,),
    "oar_rpc_message_bytes": (c_size_t, c_void_p,),
    "oar_rpc_message_create": (c_int, c_void_p,),
    "oar_rpc_message_destroy": (None, c_void_p,),
    "oar_rpc_message_map": (c_int, c_void_p, c_void_p,),
    "oar_rpc_message_rewind": (None, c_void_p,),
    "oar_rpc_name": (c_char_p, c_void_p, c_int,),
    "oar_rpc_of": (c_void_p, c_void_p,),
    "oar_rpc_put_bytes": (c_int, c_void_p, c_void_p, c_size_t,),
    "oar_rpc_put_f64": (c_int, c_void_p, c_double,),
    "oar_rpc_put_i64": (c_int, c_void_p, c_int64,),
    "oar_rpc_put_rref": (c_int, c_void_p, c_void_p,),
    "oar_rpc_put_span": (c_int, c_void_p, oar_span, c_void_p, c_void_p,),
    "oar_rpc_put_tensor": (c_int, c_void_p, c_void_p,),
    "oar_rpc_put_text": (c_int, c_void_p, c_char_p,),
    "oar_rpc_rank": (c_int, c_void_p,),
    "oar_rpc_read_stats": (c_int, c_void_p, c_void_p,),
    "oar_rpc_read_times": (c_int, c_void_p, c_int, c_char_p, c_void_p,),
    "oar_rpc_register": (c_int, c_void_p, c_void_p,),
    "oar_rpc_rejoin": (c_int, c_int, c_void_p, c_void_p,),
    "oar_rpc_remote_at": (c_int, c_char_p, c_int, c_void_p, c_int, c_char_p,
        c_void_p, c_void_p, c_void_p,),
    "oar_rpc_reply": (c_void_p, c_void_p,),
    "oar_rpc_self": (c_void_p, c_void_p,),
    "oar_rpc_self_message": (c_void_p, c_void_p,),
    "oar_rpc_send_part": (c_int, c_void_p, c_void_p,),
    "oar_rpc_shutdown": (c_int, c_void_p, c_int64,),
    "oar_rpc_site": (c_char_p, c_void_p,),
    "oar_rpc_size": (c_int, c_void_p,),
    "oar_rpc_sync_at": (c_int, c_char_p, c_int, c_void_p, c_int, c_char_p,
        c_void_p, c_void_p, c_void_p,),
    "oar_rpc_unregister": (c_int, c_void_p, c_char_p,),
    "oar_rref_call_at": (c_int, c_char_p, c_int, c_void_p, c_char_p, c_void_p,
        c_void_p, c_void_p,),
    "oar_rref_create": (c_int, c_void_p, c_char_p, c_void_p, c_void_p,
        c_void_p,),
    "oar_rref_fetch_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p,),
    "oar_rref_id": (c_uint64, c_void_p,),
    "oar_rref_local": (c_int, c_void_p, c_char_p, c_void_p,),
    "oar_rref_on_broken": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_rref_owner": (c_int, c_void_p,),
    "oar_rref_release": (None, c_void_p,),
    "oar_rref_retain": (c_void_p, c_void_p,),
    "oar_rsqrt": (c_void_p, c_void_p, c_void_p,),
    "oar_safetensors_close": (None, c_void_p,),
    "oar_safetensors_count": (c_int64, c_void_p,),
    "oar_safetensors_entry_at": (c_int, c_void_p, c_int64, c_void_p,),
    "oar_safetensors_find": (c_int, c_void_p, c_char_p, c_void_p,),
    "oar_safetensors_metadata": (c_char_p, c_void_p, c_char_p,),
    "oar_safetensors_open": (c_int, c_char_p, c_void_p, c_void_p,),
    "oar_safetensors_read": (c_int, c_void_p, c_char_p, c_void_p, c_void_p,),
    "oar_safetensors_save": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_int, c_void_p,),
    "oar_safetensors_tensor": (c_void_p, c_void_p, c_void_p, c_char_p,),
    "oar_sampler_indices": (c_int, c_int64, c_int, c_int, c_uint64, c_void_p,
        c_void_p, c_void_p,),
    "oar_scale": (c_void_p, c_void_p, c_void_p, c_double,),
    "oar_scaler_create": (c_int, c_void_p, c_void_p,),
    "oar_scaler_destroy": (None, c_void_p,),
    "oar_scaler_found": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_scaler_has_unscaled": (c_int, c_void_p, c_void_p,),
    "oar_scaler_loss": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_scaler_read": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_scaler_scale": (c_double, c_void_p,),
    "oar_scaler_set": (c_int, c_void_p, c_double, c_int64,),
    "oar_scaler_step": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_scaler_step_if": (c_int, c_void_p, c_void_p, c_int, c_void_p,),
    "oar_scaler_step_over_at": (c_int, c_char_p, c_int, c_int, c_void_p,
        c_void_p, c_void_p, c_void_p,),
    "oar_scaler_unscale": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_scatter_at": (c_int, c_char_p, c_int, c_void_p, oar_span, oar_span,
        c_int, c_void_p, c_void_p,),
    "oar_scatter_bytes_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_scatter_v_at": (c_int, c_char_p, c_int, c_void_p, oar_span, c_void_p,
        oar_span, c_int, c_void_p, c_void_p,),
    "oar_schedule_action": (c_int, c_void_p, c_int, c_int64, c_void_p,),
    "oar_schedule_actions": (c_int64, c_void_p, c_int,),
    "oar_schedule_balance": (c_int, c_int, c_void_p, c_int, c_void_p,),
    "oar_schedule_best": (c_int, c_int, c_int, c_int, c_void_p, c_uint64,
        c_void_p, c_void_p, c_void_p,),
    "oar_schedule_check": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_schedule_draw": (c_int, c_void_p, c_void_p, c_int, c_void_p,),
    "oar_schedule_explain": (c_size_t, c_void_p, c_char_p, c_size_t,),
    "oar_schedule_kind_name": (c_char_p, c_int,),
    "oar_schedule_load": (c_int, c_char_p, c_void_p, c_void_p,),
    "oar_schedule_make": (c_int, c_int, c_int, c_int, c_void_p, c_void_p,),
    "oar_schedule_micro": (c_int, c_void_p,),
    "oar_schedule_parse": (c_int, c_char_p, c_size_t, c_void_p, c_void_p,),
    "oar_schedule_rank_of": (c_int, c_void_p, c_int,),
    "oar_schedule_ranks": (c_int, c_void_p,),
    "oar_schedule_release": (None, c_void_p,),
    "oar_schedule_retain": (c_void_p, c_void_p,),
    "oar_schedule_stages": (c_int, c_void_p,),
    "oar_schedule_text": (c_size_t, c_void_p, c_int, c_char_p, c_size_t,),
    "oar_select": (c_void_p, c_void_p, c_void_p, c_int, c_int64,),
    "oar_send_at": (c_int, c_char_p, c_int, c_void_p, oar_span, c_int,
        c_int64, c_void_p, c_void_p,),
    "oar_sendrecv_at": (c_int, c_char_p, c_int, c_void_p, oar_span, c_int,
        c_int64, oar_span, c_int, c_int64, c_void_p, c_void_p,),
    "oar_sequential_create": (c_int, c_int, c_void_p, c_void_p,),
    "oar_sequential_stage_create": (c_int, c_int, c_int, c_void_p, c_void_p,),
    "oar_sgd_create": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_sgd_create_over": (c_int, c_int, c_void_p, c_void_p, c_void_p,),
    "oar_shards_array": (oar_span, c_void_p, c_int,),
    "oar_shards_count": (c_int, c_void_p,),
    "oar_shards_create_at": (c_int, c_char_p, c_int, c_void_p, c_int,
        c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_shards_destroy": (None, c_void_p,),
    "oar_shards_grad": (oar_span, c_void_p, c_int,),
    "oar_shards_hold": (c_int, c_void_p,),
    "oar_shards_prefetch_at": (c_int, c_char_p, c_int, c_void_p, c_int,),
    "oar_shards_publish_at": (c_int, c_char_p, c_int, c_void_p,),
    "oar_shards_range": (c_int, c_void_p, c_int, c_int, c_void_p, c_void_p,),
    "oar_shards_read_stats": (c_int, c_void_p, c_void_p,),
    "oar_shards_ready_at": (c_int, c_char_p, c_int, c_void_p, c_int,),
    "oar_shards_reshard_at": (c_int, c_char_p, c_int, c_void_p, c_int,),
    "oar_shards_shard": (c_int, c_void_p, c_int, c_void_p,),
    "oar_shards_tensors": (c_void_p, c_void_p, c_void_p,),
    "oar_shards_units": (c_int, c_void_p,),
    "oar_shards_unshard_at": (c_int, c_char_p, c_int, c_void_p, c_int,),
    "oar_shards_used": (c_int, c_void_p, c_int,),
    "oar_shards_wait_at": (c_int, c_char_p, c_int, c_void_p,),
    "oar_shards_weigh": (c_int, c_void_p, c_double,),
    "oar_shards_zero_grad": (None, c_void_p,),
    "oar_shared_alloc": (c_int, c_size_t, c_void_p,),
    "oar_shared_copy_on_fork": (None, c_int,),
    "oar_shared_free": (None, c_void_p,),
    "oar_shared_reachable": (c_int, c_void_p, c_size_t,),
    "oar_shift": (c_void_p, c_void_p, c_void_p, c_double,),
    "oar_sigmoid": (c_void_p, c_void_p, c_void_p,),
    "oar_sign": (c_void_p, c_void_p, c_void_p,),
    "oar_silu": (c_void_p, c_void_p, c_void_p,),
    "oar_sim_run": (c_int, c_int, c_void_p, c_void_p,),
    "oar_sim_run_with": (c_int, c_int, c_void_p, c_void_p, c_void_p,),
    "oar_sin": (c_void_p, c_void_p, c_void_p,),
    "oar_slice": (c_void_p, c_void_p, c_void_p, c_int, c_int64, c_int64,
        c_int64,),
    "oar_smooth_l1_loss": (c_void_p, c_void_p, c_void_p, c_void_p, c_double,
        c_void_p,),
    "oar_softmax": (c_void_p, c_void_p, c_void_p,),
    "oar_softmax_over": (c_void_p, c_void_p, c_void_p, c_int,),
    "oar_softplus": (c_void_p, c_void_p, c_void_p,),
    "oar_sort": (c_int, c_void_p, c_void_p, c_int, c_int, c_void_p,
        c_void_p,),
    "oar_spec_local_shape": (oar_shape, c_void_p, c_int,),
    "oar_spec_mesh": (c_void_p, c_void_p,),
    "oar_spec_of": (c_void_p, c_void_p, c_int, c_void_p, oar_shape,
        c_void_p,),
    "oar_spec_place_of": (c_int, c_void_p, c_int, c_void_p, c_void_p,),
    "oar_spec_placement": (oar_placement, c_void_p, c_int,),
    "oar_spec_shape": (oar_shape, c_void_p,),
    "oar_spec_text": (c_size_t, c_void_p, c_char_p, c_size_t,),
    "oar_sqrt": (c_void_p, c_void_p, c_void_p,),
    "oar_squeeze": (c_void_p, c_void_p, c_void_p, c_int,),
    "oar_stack": (c_void_p, c_void_p, c_int, c_void_p, c_int,),
    "oar_state_add_bytes": (c_int, c_void_p, c_char_p, c_void_p, c_size_t,),
    "oar_state_add_f64": (c_int, c_void_p, c_char_p, c_void_p,),
    "oar_state_add_i64": (c_int, c_void_p, c_char_p, c_void_p,),
    "oar_state_add_loader": (c_int, c_void_p, c_char_p, c_void_p,),
    "oar_state_add_module": (c_int, c_void_p, c_void_p, c_char_p,),
    "oar_state_add_optim": (c_int, c_void_p, c_void_p, c_void_p, c_char_p,),
    "oar_state_add_scaler": (c_int, c_void_p, c_char_p, c_void_p,),
    "oar_state_add_span": (c_int, c_void_p, c_char_p, c_char_p, oar_span,
        oar_shape, c_void_p,),
    "oar_state_add_tensor": (c_int, c_void_p, c_char_p, c_char_p, c_void_p,
        c_void_p,),
    "oar_state_create": (c_int, c_void_p,),
    "oar_state_destroy": (None, c_void_p,),
    "oar_status_name": (c_char_p, c_int,),
    "oar_status_text": (c_char_p, c_int,),
    "oar_step": (None, c_int64,),
    "oar_storage_attach": (c_int, c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_storage_attach_read_only": (c_int, c_void_p, c_void_p, c_void_p,
        c_void_p,),
    "oar_storage_bytes": (c_size_t, c_void_p,),
    "oar_storage_const_data": (c_void_p, c_void_p,),
    "oar_storage_create": (c_int, c_size_t, c_int, c_void_p,),
    "oar_storage_create_detached": (c_int, c_size_t, c_int, c_void_p,),
    "oar_storage_create_detached_on": (c_int, oar_device, c_size_t,
        c_void_p,),
    "oar_storage_create_on": (c_int, oar_device, c_size_t, c_void_p,),
    "oar_storage_data": (c_void_p, c_void_p,),
    "oar_storage_detach": (c_int, c_void_p,),
    "oar_storage_explain_absence": (None, c_void_p, c_char_p,),
    "oar_storage_release": (None, c_void_p,),
    "oar_storage_retain": (c_void_p, c_void_p,),
    "oar_storage_version": (c_uint64, c_void_p,),
    "oar_store_add": (c_int, c_void_p, c_char_p, c_int64, c_void_p,),
    "oar_store_clear": (c_int, c_void_p,),
    "oar_store_compare_set": (c_int, c_void_p, c_char_p, c_void_p, c_size_t,
        c_void_p, c_size_t, c_void_p,),
    "oar_store_create_file": (c_int, c_char_p, c_void_p,),
    "oar_store_create_memory": (c_int, c_void_p,),
    "oar_store_create_prefix": (c_int, c_void_p, c_char_p, c_void_p,),
    "oar_store_create_tcp": (c_int, c_char_p, c_int64, c_void_p,),
    "oar_store_create_tcp_with": (c_int, c_char_p, c_void_p, c_void_p,),
    "oar_store_delete": (c_int, c_void_p, c_char_p,),
    "oar_store_destroy": (None, c_void_p,),
    "oar_store_from_env": (c_int, c_void_p,),
    "oar_store_get": (c_int, c_void_p, c_char_p, c_int64, c_void_p,
        c_void_p,),
    "oar_store_list": (c_int, c_void_p, c_char_p, c_void_p, c_void_p,),
    "oar_store_serve": (c_int, c_char_p, c_void_p,),
    "oar_store_serve_with": (c_int, c_char_p, c_void_p, c_void_p,),
    "oar_store_server_address": (c_char_p, c_void_p,),
    "oar_store_server_destroy": (None, c_void_p,),
    "oar_store_set": (c_int, c_void_p, c_char_p, c_void_p, c_size_t,),
    "oar_store_wait": (c_int, c_void_p, c_int, c_void_p, c_int64,),
    "oar_stream_create": (c_int, oar_device, c_int, c_void_p,),
    "oar_stream_current": (c_void_p, oar_device,),
    "oar_stream_destroy": (None, oar_device, c_void_p,),
    "oar_stream_query": (c_int, oar_device, c_void_p, c_void_p,),
    "oar_stream_set_current": (c_int, oar_device, c_void_p,),
    "oar_stream_synchronize": (c_int, oar_device, c_void_p,),
    "oar_stream_wait": (c_int, oar_device, c_void_p, c_void_p,),
    "oar_sub": (c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_sum": (c_void_p, c_void_p, c_void_p,),
    "oar_sum_over": (c_void_p, c_void_p, c_void_p, oar_dims, c_int,),
    "oar_sync_batch_norm_convert_at": (c_int, c_char_p, c_int, c_void_p,
        c_void_p, c_void_p,),
    "oar_sync_batch_norm_create_at": (c_int, c_char_p, c_int, c_int, c_int64,
        c_void_p, c_void_p, c_void_p,),
    "oar_take_along": (c_void_p, c_void_p, c_void_p, c_int, c_void_p,),
    "oar_tanh": (c_void_p, c_void_p, c_void_p,),
    "oar_tape_bytes": (c_size_t, c_void_p,),
    "oar_tape_create": (c_int, c_void_p,),
    "oar_tape_defer": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_tape_destroy": (None, c_void_p,),
    "oar_tape_input": (c_void_p, c_void_p, c_void_p,),
    "oar_tape_on_end": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_tape_own": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_tape_pass": (c_int, c_void_p,),
    "oar_tape_rebuild": (c_int, c_void_p, c_int,),
    "oar_tape_record": (c_int, c_void_p, c_int,),
    "oar_tape_replays": (c_int, c_void_p,),
    "oar_tape_reset": (None, c_void_p,),
    "oar_tape_share": (c_size_t, c_void_p, c_size_t,),
    "oar_tensor_bind_grad": (c_int, c_void_p, c_void_p,),
    "oar_tensor_clear_grad": (None, c_void_p,),
    "oar_tensor_const_data": (c_void_p, c_void_p,),
    "oar_tensor_const_span": (c_int, c_void_p, c_void_p,),
    "oar_tensor_copy": (c_int, c_void_p, c_void_p,),
    "oar_tensor_count": (c_int64, c_void_p,),
    "oar_tensor_data": (c_void_p, c_void_p,),
    "oar_tensor_device": (oar_device, c_void_p,),
    "oar_tensor_dtype": (c_int, c_void_p,),
    "oar_tensor_fill": (c_int, c_void_p, c_double,),
    "oar_tensor_grad": (c_void_p, c_void_p,),
    "oar_tensor_guard": (None, c_void_p, c_char_p,),
    "oar_tensor_hash": (c_int, c_int, c_void_p, c_void_p,),
    "oar_tensor_is_contiguous": (c_int, c_void_p,),
    "oar_tensor_is_lazy": (c_int, c_void_p,),
    "oar_tensor_is_read_only": (c_int, c_void_p,),
    "oar_tensor_item": (c_int, c_void_p, c_void_p,),
    "oar_tensor_make_range": (c_int, c_void_p, c_int64, c_int64, c_int,
        c_void_p,),
    "oar_tensor_mark_grad": (c_int, c_void_p,),
    "oar_tensor_on_grad": (c_int, c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_tensor_on_grad_parts": (c_int, c_void_p, c_void_p, c_void_p,
        c_void_p, c_void_p,),
    "oar_tensor_read": (c_int, c_void_p, c_int, c_void_p,),
    "oar_tensor_realize": (c_int, c_void_p,),
    "oar_tensor_rebase": (c_int, c_void_p, c_void_p, c_int64, c_int,),
    "oar_tensor_release": (None, c_void_p,),
    "oar_tensor_require_grad": (c_int, c_void_p, c_int,),
    "oar_tensor_requires_grad": (c_int, c_void_p,),
    "oar_tensor_retain": (c_void_p, c_void_p,),
    "oar_tensor_scatter_add": (c_void_p, c_void_p, c_void_p, c_int, c_void_p,
        c_void_p,),
    "oar_tensor_set_grad_dtype": (c_int, c_void_p, c_int,),
    "oar_tensor_shape": (oar_shape, c_void_p,),
    "oar_tensor_span": (c_int, c_void_p, c_void_p,),
    "oar_tensor_split": (c_int, c_void_p, c_void_p, c_int, c_int, c_void_p,
        c_void_p,),
    "oar_tensor_storage": (c_void_p, c_void_p,),
    "oar_tensor_stride": (c_int64, c_void_p, c_int,),
    "oar_tensor_text": (c_size_t, c_void_p, c_char_p, c_size_t,),
    "oar_tensor_touch": (c_int, c_void_p,),
    "oar_tensor_write": (c_int, c_void_p, c_int, c_void_p,),
    "oar_threshold_text": (c_int, c_int, c_char_p, c_size_t,),
    "oar_timeout_scope_begin": (c_int, c_void_p, c_char_p, c_int64,
        c_void_p,),
    "oar_timeout_scope_end": (None, c_void_p,),
    "oar_to": (c_void_p, c_void_p, c_void_p, oar_device,),
    "oar_tokenizer_bpe": (c_int, c_char_p, c_char_p, c_void_p,),
    "oar_tokenizer_bytes": (c_int, c_void_p,),
    "oar_tokenizer_characters": (c_int, c_char_p, c_size_t, c_void_p,),
    "oar_tokenizer_count": (c_int64, c_void_p,),
    "oar_tokenizer_decode": (c_int, c_void_p, c_void_p, c_size_t, c_void_p,
        c_void_p,),
    "oar_tokenizer_destroy": (None, c_void_p,),
    "oar_tokenizer_encode": (c_int, c_void_p, c_char_p, c_size_t, c_void_p,
        c_void_p,),
    "oar_tokenizer_find": (c_int, c_void_p, c_char_p, c_size_t, c_void_p,),
    "oar_topk": (c_int, c_void_p, c_void_p, c_int64, c_void_p, c_void_p,),
    "oar_tp_all_gather_at": (c_void_p, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p, c_int, c_int64,),
    "oar_tp_all_reduce_at": (c_void_p, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p,),
    "oar_tp_clip_grad_norm_at": (c_int, c_char_p, c_int, c_void_p, c_double,
        c_void_p,),
    "oar_tp_copy_at": (c_void_p, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p,),
    "oar_tp_cross_entropy_at": (c_void_p, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p, c_void_p, c_int64, c_void_p,),
    "oar_tp_gather_at": (c_void_p, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p, c_int, c_int64,),
    "oar_tp_is_cut": (c_int, c_void_p, c_void_p,),
    "oar_tp_parallelize_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_int, c_void_p, c_void_p,),
    "oar_tp_parallelize_gpt_at": (c_int, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p,),
    "oar_tp_part": (c_int64, c_int64, c_int, c_int, c_void_p,),
    "oar_tp_reduce_scatter_at": (c_void_p, c_char_p, c_int, c_void_p,
        c_void_p, c_void_p, c_int,),
    "oar_tp_scatter_at": (c_void_p, c_char_p, c_int, c_void_p, c_void_p,
        c_void_p, c_int,),
    "oar_trace_begin": (c_uint64, c_char_p,),
    "oar_trace_close": (None, c_void_p,),
    "oar_trace_end": (None, c_uint64,),
    "oar_trace_event_at": (c_int, c_void_p, c_uint64, c_void_p,),
    "oar_trace_events": (c_uint64, c_void_p,),
    "oar_trace_open": (c_int, c_char_p, c_void_p,),
    "oar_trace_process_at": (c_int, c_void_p, c_int, c_void_p,),
    "oar_trace_processes": (c_int, c_void_p,),
    "oar_transpose": (c_void_p, c_void_p, c_void_p, c_int, c_int,),
    "oar_tril": (c_void_p, c_void_p, c_void_p, c_int64,),
    "oar_triu": (c_void_p, c_void_p, c_void_p, c_int64,),
    "oar_uniform": (c_void_p, c_void_p, c_int, oar_shape, c_uint64, c_double,
        c_double,),
    "oar_unsqueeze": (c_void_p, c_void_p, c_void_p, c_int,),
    "oar_var_over": (c_void_p, c_void_p, c_void_p, oar_dims, c_int, c_int,),
    "oar_version": (c_int,),
    "oar_view_of": (c_void_p, c_void_p, c_void_p, c_int64, c_int, oar_shape,),
    "oar_where": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,),
    "oar_where_scalar": (c_void_p, c_void_p, c_void_p, c_void_p, c_double,),
    "oar_window_alloc": (c_int, c_size_t, c_void_p,),
    "oar_window_bytes": (c_size_t, c_void_p,),
    "oar_window_create_at": (c_int, c_char_p, c_int, c_void_p, c_size_t,
        c_void_p, c_void_p,),
    "oar_window_data": (c_void_p, c_void_p,),
    "oar_window_export": (c_int, c_void_p, c_void_p,),
    "oar_window_has": (c_int, c_void_p, c_int,),
    "oar_window_import": (c_int, c_char_p, c_int, c_void_p,),
    "oar_window_protect": (c_int, c_void_p, c_size_t, c_size_t, c_int,),
    "oar_window_ranks": (c_int, c_void_p,),
    "oar_window_release": (None, c_void_p,),
    "oar_window_retain": (c_void_p, c_void_p,),
    "oar_work_cancel": (c_int, c_void_p, c_void_p,),
    "oar_work_order": (c_int, c_void_p, c_void_p,),
    "oar_work_release": (None, c_void_p,),
    "oar_work_start": (c_int, c_void_p,),
    "oar_work_test": (c_int, c_void_p, c_void_p,),
    "oar_work_then": (c_int, c_void_p, c_void_p, c_void_p,),
    "oar_work_wait": (c_int, c_void_p,),
    "oar_work_wait_all": (c_int, c_int, c_void_p,),
    "oar_work_wait_any": (c_int, c_int, c_void_p, c_void_p,),
    "oar_work_wait_for": (c_int, c_void_p, c_int64,),
    "oar_zeros": (c_void_p, c_void_p, c_int, oar_shape,),
}

# The bytes of each struct, as the C compiler counts them.
SIZES = {
    "oar_action": 16,
    "oar_adam_opts": 72,
    "oar_attention_layer_opts": 64,
    "oar_attention_opts": 56,
    "oar_backend_caps": 32,
    "oar_backend_env": 80,
    "oar_backend_ops": 264,
    "oar_batch_norm_merge": 40,
    "oar_batch_norm_opts": 48,
    "oar_bce_opts": 32,
    "oar_bucket": 104,
    "oar_call_opts": 80,
    "oar_catalog_entry": 128,
    "oar_checkpoint_opts": 64,
    "oar_checkpoint_stats": 104,
    "oar_clip_part": 16,
    "oar_cnn_opts": 56,
    "oar_collective": 176,
    "oar_conv1d_layer_opts": 32,
    "oar_conv1d_opts": 24,
    "oar_conv2d_layer_opts": 48,
    "oar_conv2d_opts": 40,
    "oar_conv_transpose1d_layer_opts": 40,
    "oar_conv_transpose1d_opts": 32,
    "oar_conv_transpose2d_layer_opts": 56,
    "oar_conv_transpose2d_opts": 48,
    "oar_counter_entry": 16,
    "oar_cross_entropy_merge": 48,
    "oar_cross_entropy_opts": 48,
    "oar_custom_op": 32,
    "oar_ddp_opts": 72,
    "oar_ddp_stats": 64,
    "oar_device": 8,
    "oar_device_name": 24,
    "oar_device_properties": 208,
    "oar_device_usage": 40,
    "oar_dims": 36,
    "oar_dtensor": 16,
    "oar_dtensor_limits": 24,
    "oar_dtensor_traffic": 56,
    "oar_dup_opts": 40,
    "oar_embedding_layer_opts": 48,
    "oar_embedding_opts": 40,
    "oar_envelope": 32,
    "oar_error": 808,
    "oar_export_opts": 48,
    "oar_fsdp_opts": 88,
    "oar_generation": 472,
    "oar_gpt_opts": 104,
    "oar_gradcheck_opts": 24,
    "oar_group_norm_opts": 24,
    "oar_group_opts": 120,
    "oar_kl_div_opts": 16,
    "oar_launch_opts": 216,
    "oar_launch_result": 24,
    "oar_linear_opts": 16,
    "oar_live_metric": 72,
    "oar_live_rank": 544,
    "oar_load_opts": 56,
    "oar_loader_opts": 56,
    "oar_loss_opts": 16,
    "oar_lr_schedule": 48,
    "oar_memory_stats": 32,
    "oar_mesh_opts": 32,
    "oar_message": 32,
    "oar_module_class": 56,
    "oar_move": 48,
    "oar_move_plan": 616,
    "oar_optim_description": 80,
    "oar_optim_entry": 56,
    "oar_part_place": 80,
    "oar_pipeline_batch": 64,
    "oar_pipeline_opts": 64,
    "oar_pipeline_result": 32,
    "oar_pipeline_stats": 88,
    "oar_place": 160,
    "oar_placement": 24,
    "oar_pool2d_opts": 24,
    "oar_power_sgd_opts": 48,
    "oar_record": 248,
    "oar_redistribute_opts": 16,
    "oar_reduce_hook": 40,
    "oar_reduce_op": 16,
    "oar_reducer_opts": 64,
    "oar_reducer_stats": 56,
    "oar_rename": 24,
    "oar_replay_opts": 16,
    "oar_rpc_call_opts": 48,
    "oar_rpc_function": 56,
    "oar_rpc_opts": 104,
    "oar_rpc_stats": 120,
    "oar_rpc_times": 1072,
    "oar_safetensors_entry": 120,
    "oar_safetensors_opts": 24,
    "oar_sampler_opts": 24,
    "oar_save_opts": 40,
    "oar_scaler_opts": 24,
    "oar_schedule_choice": 72,
    "oar_schedule_cost": 64,
    "oar_schedule_opts": 24,
    "oar_schedule_report": 48,
    "oar_sgd_opts": 40,
    "oar_shape": 72,
    "oar_shard": 104,
    "oar_shards_opts": 88,
    "oar_shards_stats": 88,
    "oar_shrink_opts": 24,
    "oar_span": 32,
    "oar_spec_opts": 16,
    "oar_stage": 64,
    "oar_stage_input": 8,
    "oar_stall": 880,
    "oar_step_opts": 32,
    "oar_store_opts": 24,
    "oar_tokens_opts": 24,
    "oar_tp_opts": 16,
    "oar_tp_rule": 16,
    "oar_trace_event": 120,
    "oar_trace_process": 152,
    "oar_transfer": 136,
    "oar_window_opts": 24,
}
