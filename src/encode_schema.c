/*
 * encode_schema.c
 *	  Schemas of columns, as Kafka Connect's JsonConverter writes them.
 *
 * Built once for a relation, into its plan.  With scalars as Debezium's the
 * types, names, versions and parameters are Debezium's; readable ones have the
 * types of their JSON, and Debezium's names where its form is the same.
 *
 * "default" is never there: with one, Connect's converter makes of NULL the
 * column's default.
 */
#include "encode_row.h"
#include "encode_value.h"

#define append_literal(out, literal) tk_buffer_append(out, literal, sizeof(literal) - 1)

/* A type's beginning and what comes behind "optional" */
typedef struct Semantic
{
	const char *type;
	const char *name;			/* NULL: none, and no version */
} Semantic;

/* Whatever the scalars' style: schemas are for Connect's reader. */
static void
append_string(TkBuffer *out, const char *s)
{
	tk_json_text(out, s, strlen(s), TK_STYLE_DEBEZIUM);
}

static void
append_type(TkBuffer *out, const char *type)
{
	append_literal(out, "{\"type\":\"");
	tk_buffer_string(out, type);
	tk_buffer_char(out, '"');
}

static void
append_optional(TkBuffer *out, bool optional)
{
	append_literal(out, ",\"optional\":");
	tk_buffer_string(out, optional ? "true" : "false");
}

static void
append_name(TkBuffer *out, const char *name)
{
	append_literal(out, ",\"name\":");
	append_string(out, name);
	append_literal(out, ",\"version\":1");
}

static void
append_end(TkBuffer *out, const char *field)
{
	if (field != NULL)
	{
		append_literal(out, ",\"field\":");
		append_string(out, field);
	}
	tk_buffer_char(out, '}');
}

/* Kafka Connect's Decimal; precision < 0: not said */
static void
append_decimal(TkBuffer *out, bool optional, int scale, int precision, const char *field)
{
	append_type(out, "bytes");
	append_optional(out, optional);
	append_name(out, "org.apache.kafka.connect.data.Decimal");
	append_literal(out, ",\"parameters\":{\"scale\":\"");
	tk_decimal(out, scale);
	if (precision >= 0)
	{
		append_literal(out, "\",\"connect.decimal.precision\":\"");
		tk_decimal(out, precision);
	}
	append_literal(out, "\"}");
	append_end(out, field);
}

static void
append_numeric(TkBuffer *out, int32_t typmod, bool optional, const char *field)
{
	if (typmod >= 0)
	{
		append_decimal(out, optional, (typmod - 4) & 0xFFFF, (typmod - 4) >> 16 & 0xFFFF, field);
		return;
	}
	append_literal(out, "{\"type\":\"struct\",\"fields\":[{\"type\":\"int32\",\"optional\":false,\"field\":\"scale\"},"
				   "{\"type\":\"bytes\",\"optional\":false,\"field\":\"value\"}]");
	append_optional(out, optional);
	append_name(out, "io.debezium.data.VariableScaleDecimal");
	append_literal(out, ",\"doc\":\"Variable scaled decimal\"");
	append_end(out, field);
}

#define POINT_FIELDS \
	"{\"type\":\"struct\",\"fields\":[{\"type\":\"double\",\"optional\":false,\"field\":\"x\"}," \
	"{\"type\":\"double\",\"optional\":false,\"field\":\"y\"}," \
	"{\"type\":\"bytes\",\"optional\":true,\"field\":\"wkb\"}," \
	"{\"type\":\"int32\",\"optional\":true,\"field\":\"srid\"}]"
#define POINT_NAME ",\"name\":\"io.debezium.data.geometry.Point\",\"version\":1,\"doc\":\"Geometry (POINT)\""

static void
append_point(TkBuffer *out, bool optional, const char *field)
{
	append_literal(out, POINT_FIELDS);
	append_optional(out, optional);
	append_literal(out, POINT_NAME);
	append_end(out, field);
}

/* Debezium says of all these but a geography that they are optional, whatever the column is. */
static void
append_geometry(TkBuffer *out, TkKind kind, bool optional, const char *field)
{
	switch (kind)
	{
		case TK_KIND_LINE:
			append_literal(out, "{\"type\":\"struct\",\"fields\":[{\"type\":\"double\",\"optional\":false,\"field\":\"a\"},"
						   "{\"type\":\"double\",\"optional\":false,\"field\":\"b\"},"
						   "{\"type\":\"double\",\"optional\":false,\"field\":\"c\"}],\"optional\":true,"
						   "\"name\":\"io.debezium.data.geometry.Line\",\"version\":1,\"doc\":\"Geometry (LINE)\"");
			break;
		case TK_KIND_CIRCLE:
			append_literal(out, "{\"type\":\"struct\",\"fields\":[" POINT_FIELDS ",\"optional\":false" POINT_NAME
						   ",\"field\":\"center\"},{\"type\":\"double\",\"optional\":false,\"field\":\"radius\"}],"
						   "\"optional\":true,\"name\":\"io.debezium.data.geometry.Circle\",\"version\":1,"
						   "\"doc\":\"Geometry (CIRCLE)\"");
			break;
		case TK_KIND_GEOGRAPHY:
			append_literal(out, "{\"type\":\"struct\",\"fields\":[{\"type\":\"bytes\",\"optional\":false,\"field\":\"wkb\"},"
						   "{\"type\":\"int32\",\"optional\":true,\"field\":\"srid\"}]");
			append_optional(out, optional);
			append_literal(out, ",\"name\":\"io.debezium.data.geometry.Geography\",\"version\":1,\"doc\":\"Geography\"");
			break;
		default:
			append_literal(out, "{\"type\":\"struct\",\"fields\":[{\"type\":\"bytes\",\"optional\":false,\"field\":\"wkb\"},"
						   "{\"type\":\"int32\",\"optional\":true,\"field\":\"srid\"},"
						   "{\"type\":\"map\",\"keys\":{\"type\":\"string\",\"optional\":false},"
						   "\"values\":{\"type\":\"string\",\"optional\":false},\"optional\":true,\"field\":\"extensions\"}],"
						   "\"optional\":true,\"name\":\"io.debezium.data.geometry.Geometry\",\"version\":2,"
						   "\"doc\":\"Geometry\"");
			break;
	}
	append_end(out, field);
}

static void
append_vector(TkBuffer *out, const TkType *type, bool optional, const char *field)
{
	bool		half = type->kind == TK_KIND_HALFVEC;

	append_literal(out, "{\"type\":\"array\",\"items\":{\"type\":\"");
	tk_buffer_string(out, half ? "float" : "double");
	append_literal(out, "\",\"optional\":false}");
	append_optional(out, optional);
	append_name(out, half ? "io.debezium.data.FloatVector" : "io.debezium.data.DoubleVector");
	append_end(out, field);
}

/* One parameter, a string */
static void
append_parameter(TkBuffer *out, const char *name, const char *value)
{
	append_literal(out, ",\"parameters\":{\"");
	tk_buffer_string(out, name);
	append_literal(out, "\":");
	append_string(out, value);
	tk_buffer_char(out, '}');
}

static void
append_bits(TkBuffer *out, int32_t typmod, bool optional, const char *field)
{
	if (typmod == 1)
	{
		append_type(out, "boolean");
		append_optional(out, optional);
	}
	else
	{
		append_type(out, "bytes");
		append_optional(out, optional);
		append_name(out, "io.debezium.data.Bits");
		append_literal(out, ",\"parameters\":{\"length\":\"");
		tk_decimal(out, typmod < 0 ? INT32_MAX : typmod);
		append_literal(out, "\"}");
	}
	append_end(out, field);
}

static void append_schema(TkBuffer *out, const TkType *type, bool optional, int style, const char *field);

static void
append_array(TkBuffer *out, const TkType *type, bool optional, int style, const char *field)
{
	const TkType *element = type->element;
	bool		debezium = (style & TK_STYLE_DEBEZIUM) != 0;

	if (debezium && element->kind == TK_KIND_BIT)
	{
		append_bits(out, element->typmod, optional, field);
		return;
	}
	append_type(out, "array");
	append_literal(out, ",\"items\":");
	append_schema(out, element, !debezium || (element->kind != TK_KIND_ENUM && element->kind != TK_KIND_TSVECTOR),
				  style, NULL);
	append_optional(out, optional);
	append_end(out, field);
}

static void
append_composite(TkBuffer *out, const TkType *type, bool optional, int style, const char *field)
{
	int			i;

	tk_schema_struct_open(out);
	for (i = 0; i < type->nattributes; i++)
		tk_schema_field(out, &type->attributes[i].type, true, style, type->attributes[i].name);
	tk_schema_struct_close(out, optional, NULL, NULL, 0, field);
}

static Semantic
readable_semantic(const TkType *type)
{
	switch (type->kind)
	{
		case TK_KIND_BOOL:
			return (Semantic)
			{
				"boolean", NULL
			};
		case TK_KIND_SMALLINT:
			return (Semantic)
			{
				"int16", NULL
			};
		case TK_KIND_INTEGER:
			return (Semantic)
			{
				"int32", NULL
			};
		case TK_KIND_BIGINT:
		case TK_KIND_OID:
			return (Semantic)
			{
				"int64", NULL
			};
		case TK_KIND_REAL:
			return (Semantic)
			{
				"float", NULL
			};
		case TK_KIND_FLOAT:
			return (Semantic)
			{
				"double", NULL
			};
		case TK_KIND_BYTEA:
			return (Semantic)
			{
				"bytes", NULL
			};
		case TK_KIND_JSON:
			return (Semantic)
			{
				"string", "io.debezium.data.Json"
			};
		case TK_KIND_UUID:
			return (Semantic)
			{
				"string", "io.debezium.data.Uuid"
			};
		case TK_KIND_XML:
			return (Semantic)
			{
				"string", "io.debezium.data.Xml"
			};
		case TK_KIND_TSVECTOR:
			return (Semantic)
			{
				"string", "io.debezium.data.Tsvector"
			};
		case TK_KIND_LTREE:
			return (Semantic)
			{
				"string", "io.debezium.data.Ltree"
			};
		case TK_KIND_ENUM:
			return (Semantic)
			{
				"string", "io.debezium.data.Enum"
			};
		case TK_KIND_TIMESTAMPTZ:
			return (Semantic)
			{
				"string", "io.debezium.time.ZonedTimestamp"
			};
		default:
			return (Semantic)
			{
				"string", NULL
			};
	}
}

static Semantic
debezium_semantic(const TkType *type)
{
	bool		in_ms = type->typmod >= 0 && type->typmod <= 3;

	switch (type->kind)
	{
		case TK_KIND_DATE:
			return (Semantic)
			{
				"int32", "io.debezium.time.Date"
			};
		case TK_KIND_TIME:
			return in_ms ? (Semantic)
			{
				"int32", "io.debezium.time.Time"
			} :
				(Semantic)
			{
				"int64", "io.debezium.time.MicroTime"
			};
		case TK_KIND_TIMESTAMP:
			return in_ms ? (Semantic)
			{
				"int64", "io.debezium.time.Timestamp"
			} :
				(Semantic)
			{
				"int64", "io.debezium.time.MicroTimestamp"
			};
		case TK_KIND_TIMETZ:
			return (Semantic)
			{
				"string", "io.debezium.time.ZonedTime"
			};
		case TK_KIND_INTERVAL:
			return (Semantic)
			{
				"int64", "io.debezium.time.MicroDuration"
			};
		case TK_KIND_HSTORE:
			return (Semantic)
			{
				"string", "io.debezium.data.Json"
			};
		default:
			return readable_semantic(type);
	}
}

static void
append_schema(TkBuffer *out, const TkType *type, bool optional, int style, const char *field)
{
	bool		debezium = (style & TK_STYLE_DEBEZIUM) != 0;
	Semantic	semantic;

	switch (type->kind)
	{
		case TK_KIND_ARRAY:
			append_array(out, type, optional, style, field);
			return;
		case TK_KIND_COMPOSITE:
			append_composite(out, type, optional, style, field);
			return;
		case TK_KIND_HSTORE:
			if (debezium)
				break;
			append_type(out, "map");
			append_literal(out, ",\"keys\":{\"type\":\"string\",\"optional\":false},"
						   "\"values\":{\"type\":\"string\",\"optional\":true}");
			append_optional(out, optional);
			append_end(out, field);
			return;
		case TK_KIND_NUMERIC:
			if (!debezium)
				break;
			append_numeric(out, type->typmod, optional, field);
			return;
		case TK_KIND_MONEY:
			if (!debezium)
				break;
			append_decimal(out, optional, 2, -1, field);
			return;
		case TK_KIND_BIT:
		case TK_KIND_VARBIT:
			if (!debezium)
				break;
			append_bits(out, type->typmod, optional, field);
			return;
		case TK_KIND_POINT:
			if (!debezium)
				break;
			append_point(out, optional, field);
			return;
		case TK_KIND_BOX:
		case TK_KIND_LSEG:
		case TK_KIND_PATH:
		case TK_KIND_POLYGON:
		case TK_KIND_LINE:
		case TK_KIND_CIRCLE:
		case TK_KIND_GEOMETRY:
		case TK_KIND_GEOGRAPHY:
			if (!debezium)
				break;
			append_geometry(out, type->kind, optional, field);
			return;
		case TK_KIND_VECTOR:
		case TK_KIND_HALFVEC:
			if (!debezium)
				break;
			append_vector(out, type, optional, field);
			return;
		default:
			break;
	}

	semantic = debezium ? debezium_semantic(type) : readable_semantic(type);
	append_type(out, semantic.type);
	append_optional(out, optional);
	if (semantic.name != NULL)
		append_name(out, semantic.name);
	if (type->kind == TK_KIND_ENUM)
		append_parameter(out, "allowed", type->labels != NULL ? type->labels : "");
	append_end(out, field);
}

void
tk_schema_open(TkBuffer *out)
{
	append_literal(out, "{\"schema\":");
}

void
tk_schema_close(TkBuffer *out)
{
	append_literal(out, ",\"payload\":");
}

void
tk_schema_struct_open(TkBuffer *out)
{
	append_literal(out, "{\"type\":\"struct\",\"fields\":[");
}

void
tk_schema_struct_close(TkBuffer *out, bool optional, const char *name, const char *suffix, int version,
					   const char *field)
{
	tk_buffer_char(out, ']');
	append_optional(out, optional);
	if (name != NULL)
	{
		append_literal(out, ",\"name\":\"");
		tk_append_text(out, name, strlen(name), TK_ESCAPE_JACKSON_UTF8);
		tk_buffer_string(out, suffix);
		tk_buffer_char(out, '"');
	}
	if (version > 0)
	{
		append_literal(out, ",\"version\":");
		tk_decimal(out, version);
	}
	append_end(out, field);
}

void
tk_schema_field(TkBuffer *out, const TkType *type, bool optional, int style, const char *field)
{
	if (out->len > 0 && out->data[out->len - 1] != '[')
		tk_buffer_char(out, ',');
	append_schema(out, type, optional, style, field);
}
